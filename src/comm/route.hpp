// SPDX-License-Identifier: Apache-2.0
//
// Which way messages go from one rank to another. The choice is a function of what all ranks know
// of each other, so that all ranks choose the same.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"

namespace millrace::comm {

enum class Way {
  Nccl,    ///< from device to device
  Mpi,     ///< MPI reads and writes the memory, be it of cores or of a device
  Staged,  ///< by MPI, through buffers of the host
};

struct Route {
  Way way = Way::Mpi;
  std::string reason;  ///< where devices have queues: why not by NCCL; otherwise ""
  friend bool operator==(const Route&, const Route&) = default;
};

/// What a rank tells the others.
struct RankFacts {
  std::string nccl;    ///< its version; "": there is none
  std::string device;  ///< "" if nobody knows which
  bool wants_mpi = false;
};

/// Whether MILLRACE_MESSAGES=mpi keeps NCCL out of this process. Errors: Usage, for another value.
[[nodiscard]] bool wants_mpi();

/// By NCCL if all ranks have the same version of it, each has a device of its own, because NCCL
/// refuses two on one, and nobody has asked for MPI. `otherwise` is the way without NCCL.
[[nodiscard]] Route choose_route(std::span<const RankFacts> ranks, Way otherwise);

/// The route between the ranks of this world, of which there are at least two. Collective where
/// devices have queues.
[[nodiscard]] Route route_between_ranks(const World& world, const DeviceMemory& memory);

/// How messages go between each pair of ranks, a line for each kind of pair, for people.
/// `on_cores`: whether kernels run there. Collective where devices have queues.
[[nodiscard]] std::vector<std::string> describe_routes(const World& world,
                                                       const DeviceMemory& memory, bool on_cores);

}  // namespace millrace::comm
