// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/world.hpp"

namespace millrace::comm {

/// Copies bytes and waits. The two ranges must not overlap.
using CopyBytes = void (*)(std::byte* to, const std::byte* from, std::int64_t bytes);

/// How this process reaches the memory of its device, in which all messages lie.
struct DeviceMemory {
  CopyBytes copy_within = nullptr;
  /// What follows is null where MPI may read and write device memory itself. Otherwise messages
  /// between ranks go through buffers of the host, one for each message.
  CopyBytes copy_to_host = nullptr;
  CopyBytes copy_to_device = nullptr;
  std::shared_ptr<std::byte> (*host_buffer)(std::size_t bytes) = nullptr;

  [[nodiscard]] bool is_staged() const { return copy_to_host != nullptr; }
};

/// Point-to-point messages that are prepared once (memory, partner, tag) and sent many times.
/// Between two ranks, messages with the same tag arrive in the order in which they were started. A
/// message within a rank is copied as soon as both ends have been started.
class Transport {
 public:
  virtual ~Transport() = default;
  /// prepare_send() and prepare_receive() return the number of the message for the calls below.
  [[nodiscard]] virtual int prepare_send(const std::byte* data, std::int64_t bytes, int rank,
                                         int tag) = 0;
  [[nodiscard]] virtual int prepare_receive(std::byte* data, std::int64_t bytes, int rank,
                                            int tag) = 0;
  /// A message may be started again only after it is done.
  virtual void start(int message) = 0;
  /// Whether the memory of the message may be reused; also true before the first start.
  [[nodiscard]] virtual bool done(int message) = 0;
  virtual void wait(int message) = 0;
  /// For a caller that looks again and again whether a message is done.
  [[nodiscard]] virtual Patience patience() const = 0;
};

/// Uses MPI between ranks and copies within a rank. `world` must outlive the transport. Errors:
/// Internal, if this process waits for a message to itself that it has not sent.
[[nodiscard]] std::unique_ptr<Transport> make_transport(const World& world,
                                                        const DeviceMemory& memory);
/// The same for a process that plays the part of `rank` alone, as a rehearsal: messages to other
/// ranks are lost, and those from them are done at once and change nothing.
[[nodiscard]] std::unique_ptr<Transport> make_transport_alone(const World& world, int rank,
                                                              const DeviceMemory& memory);

}  // namespace millrace::comm
