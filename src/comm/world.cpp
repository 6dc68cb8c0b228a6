// SPDX-License-Identifier: Apache-2.0
#include "comm/world.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/error.hpp"

namespace millrace::comm {
namespace {

/// Open MPI, MPICH and its descendants, and PMIx under Slurm tell a process so.
bool started_by_launcher() {
  constexpr std::array kSigns = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                 "MPI_LOCALNRANKS"};
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(ErrorKind::Peer, "{} failed with code {}", call, code);
}

}  // namespace

World::World() {
  if (!started_by_launcher()) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  initialised_ = true;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
}

World::~World() {
  if (initialised_) MPI_Finalize();
}

}  // namespace millrace::comm
