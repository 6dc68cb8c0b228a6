// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/transport.hpp"

namespace millrace::comm {

/// The messages of a Transport to and from other ranks; numbers count from 0. The functions are
/// those of Transport.
class RankMessages {
 public:
  virtual ~RankMessages() = default;
  /// Only libraries without tags need to know.
  virtual int add_run(const MessageOrder&) { return 0; }
  virtual void begin_run(int) {}
  virtual int add_send(const std::byte* data, std::int64_t bytes, int rank, int tag) = 0;
  virtual int add_receive(std::byte* data, std::int64_t bytes, int rank, int tag) = 0;
  virtual void start(int number) = 0;
  [[nodiscard]] virtual bool done(int number) = 0;
  virtual void wait(int number, Patience patience) = 0;
  virtual void flush(Patience patience) = 0;
};

/// By MPI, with persistent requests on a communicator of their own.
[[nodiscard]] std::unique_ptr<RankMessages> make_mpi_messages(const World& world,
                                                              const DeviceMemory& memory);

/// By NCCL, from device to device; needs queues. MPI only brings the ranks together. Collective.
[[nodiscard]] std::unique_ptr<RankMessages> make_nccl_messages(const World& world,
                                                               const DeviceMemory& memory);
/// Version of the NCCL that make_nccl_messages() uses: "2.28.9"; "" if this build has none, or its
/// library does not answer.
[[nodiscard]] std::string nccl_version();
/// Sets what NVIDIA's driver has to know before it is used, if there are other ranks.
void prepare_for_nccl();

}  // namespace millrace::comm
