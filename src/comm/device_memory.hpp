// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

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

}  // namespace millrace::comm
