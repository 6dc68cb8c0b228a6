// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/world.hpp"

namespace millrace::comm {

/// How bytes are copied between two places of this process' devices.
using CopyBytes = void (*)(std::byte* to, const std::byte* from, std::int64_t bytes);

/// Messages that are prepared once (memory, partner, tag) and sent many times. Between two ranks,
/// messages of one tag arrive in the order in which they were started. A message within a rank is
/// copied once both ends have been started.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Both return the number of the message for the calls below.
  [[nodiscard]] virtual int prepare_send(const std::byte* data, std::int64_t bytes, int rank,
                                         int tag) = 0;
  [[nodiscard]] virtual int prepare_receive(std::byte* data, std::int64_t bytes, int rank,
                                            int tag) = 0;
  /// A message is started again only after it is done.
  virtual void start(int message) = 0;
  /// Whether the memory of the message may be used again; true also for one never started.
  [[nodiscard]] virtual bool done(int message) = 0;
  virtual void wait(int message) = 0;
};

/// MPI between ranks, copies within one. The world must outlive it. Errors: Internal, when this
/// process waits for a message to itself that it has not sent.
[[nodiscard]] std::unique_ptr<Transport> make_transport(const World& world, CopyBytes copy);

}  // namespace millrace::comm
