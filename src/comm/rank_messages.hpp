// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/device_memory.hpp"
#include "comm/patience.hpp"

namespace millrace::comm {

/// The messages of a Transport to and from other ranks; numbers count from 0. The functions are
/// those of Transport.
class RankMessages {
 public:
  virtual ~RankMessages() = default;
  virtual int add_send(const std::byte* data, std::int64_t bytes, int rank, int tag) = 0;
  virtual int add_receive(std::byte* data, std::int64_t bytes, int rank, int tag) = 0;
  virtual void start(int number) = 0;
  [[nodiscard]] virtual bool done(int number) = 0;
  virtual void wait(int number, Patience patience) = 0;
  virtual void flush(Patience patience) = 0;
};

/// By MPI, with persistent requests on a communicator of their own. Errors: Config, for a message
/// of 2 GiB or more.
[[nodiscard]] std::unique_ptr<RankMessages> make_mpi_messages(const DeviceMemory& memory);

}  // namespace millrace::comm
