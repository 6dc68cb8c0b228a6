// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.hpp"

namespace millrace::comm {

/// A point in the work of a device: of its kernels or of its copies. It can be marked again and
/// again.
class Mark {
 public:
  virtual ~Mark() = default;
  /// Marks the point behind all kernels that are queued so far.
  virtual void after_kernels() = 0;
  /// Whether the device has passed the point; also true before the first mark.
  [[nodiscard]] virtual bool reached() = 0;
  virtual void wait() = 0;
  /// Kernels that are queued from now on wait until the device has passed the point.
  virtual void delay_kernels() = 0;
};

/// A queue of a device beside its kernels, which a library fills with messages.
class MessageQueue {
 public:
  virtual ~MessageQueue() = default;
  /// What is put in from now on waits until the device has passed the point.
  virtual void wait_for(const Mark& mark) = 0;
  /// Marks the point behind everything that is in the queue so far.
  virtual void mark(Mark& mark) = 0;
  /// What the library knows it by.
  [[nodiscard]] virtual void* handle() const = 0;
};

/// A device whose kernels wait in a queue, so that a message must take its place among them.
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;
  /// Which device of its machine it is; "" if nobody knows.
  [[nodiscard]] virtual std::string place() = 0;
  [[nodiscard]] virtual std::unique_ptr<Mark> make_mark() = 0;
  [[nodiscard]] virtual std::unique_ptr<MessageQueue> make_message_queue() = 0;
  /// Memory of the device.
  [[nodiscard]] virtual std::shared_ptr<std::byte> device_buffer(std::size_t bytes) = 0;
  /// Host memory from and to which the device copies fast.
  [[nodiscard]] virtual std::shared_ptr<std::byte> host_buffer(std::size_t bytes) = 0;
  /// Copies beside kernels, once `after` is reached, and marks the end of the copy with `done`.
  virtual void copy_to_host(std::byte* host, const std::byte* device, std::int64_t bytes,
                            const Mark& after, Mark& done) = 0;
  virtual void copy_to_device(std::byte* device, const std::byte* host, std::int64_t bytes,
                              const Mark& after, Mark& done) = 0;
};

/// Copies bytes, in the queue of kernels if there is one. The two ranges must not overlap.
using CopyBytes = void (*)(std::byte* to, const std::byte* from, std::int64_t bytes);

/// How this process reaches the memory of its device, in which all messages lie.
struct DeviceMemory {
  CopyBytes copy_within = nullptr;
  /// Null where kernels are done when their launch returns, as on cores.
  std::shared_ptr<DeviceQueues> queues = nullptr;
  /// Whether messages by MPI go through buffers of the host, one for each message, because MPI
  /// cannot read and write the memory itself. Needs queues.
  bool is_staged = false;
};

/// By two different ranks, sender and receiver: the tags of the messages that the sender starts in
/// one run of a schedule, in that order.
using MessageOrder = std::map<std::pair<int, int>, std::vector<int>>;

/// Point-to-point messages that are prepared once (memory, partner, tag) and sent many times.
/// Between two ranks, messages with the same tag arrive in the order in which they were started. A
/// message within a rank is copied as soon as both ends have been started.
///
/// Where kernels wait in a queue, a message takes its place among them, and nobody has to wait for
/// the kernels: it reads or writes its memory only after the kernels that were queued before
/// start(), and once it is done, kernels that are queued later see what has arrived, or may
/// overwrite what was sent.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Announces runs of a schedule, before their messages are prepared, and returns their number.
  /// `order` has the messages whose order the schedule fixes; those with other tags may be started
  /// in any order. All ranks announce the same runs and begin them together.
  [[nodiscard]] virtual int add_run(const MessageOrder& order) = 0;
  virtual void begin_run(int run) = 0;
  /// prepare_send() and prepare_receive() return the number of the message for the calls below.
  [[nodiscard]] virtual int prepare_send(const std::byte* data, std::int64_t bytes, int rank,
                                         int tag) = 0;
  [[nodiscard]] virtual int prepare_receive(std::byte* data, std::int64_t bytes, int rank,
                                            int tag) = 0;
  /// A message may be started again only after it is done, or waited for.
  virtual void start(int message) = 0;
  /// Whether the memory of the message may be reused; also true before the first start.
  [[nodiscard]] virtual bool done(int message) = 0;
  /// What is queued or done from now on comes after the message. Where a library has queues of its
  /// own, kernels wait for it, and this process does not.
  virtual void wait(int message) = 0;
  /// Waits until every started message is on its way without this process: before a wait during
  /// which it asks for no message.
  virtual void flush() = 0;
  /// Whether messages between ranks take host memory.
  [[nodiscard]] virtual bool is_staged() const = 0;
  /// Whether a receive may start long before its send does.
  [[nodiscard]] virtual bool receives_early() const { return false; }
  /// For a caller that looks again and again whether a message is done.
  [[nodiscard]] virtual Patience patience() const = 0;
};

/// Copies within a rank, and goes the way of route_between_ranks() between ranks. `world` must
/// outlive the transport. Collective where devices have queues. Errors: Internal, if this process
/// waits for a message to itself that it has not sent.
[[nodiscard]] std::unique_ptr<Transport> make_transport(const World& world,
                                                        const DeviceMemory& memory);
/// The same for a process that plays the part of `rank` alone, as a dry run: messages to other
/// ranks are lost, and those from them are done at once and change nothing.
[[nodiscard]] std::unique_ptr<Transport> make_transport_alone(const World& world, int rank,
                                                              const DeviceMemory& memory);

}  // namespace millrace::comm
