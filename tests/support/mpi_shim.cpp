// SPDX-License-Identifier: Apache-2.0
//
// Intercepts MPI calls (through LD_PRELOAD) and makes messages as slow and as unbuffered as the
// standard allows: every persistent send is synchronous, and the rank sometimes sleeps before it
// starts or tests a message. This reveals dependence on timing or buffers. With
// MILLRACE_SHIM_LATENCY, every message takes that many milliseconds longer instead.
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

namespace {

/// Seeded by MILLRACE_SHIM_SEED and the rank, so that different runs delay different messages.
std::minstd_rand& generator() {
  static std::minstd_rand random([] {
    const char* seed = std::getenv("MILLRACE_SHIM_SEED");
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return static_cast<unsigned>((seed != nullptr ? std::atoi(seed) : 0) * 1000 + rank + 1);
  }());
  return random;
}

/// The latency in milliseconds; 0: none.
int latency() {
  static const int milliseconds = [] {
    const char* text = std::getenv("MILLRACE_SHIM_LATENCY");
    return text != nullptr ? std::atoi(text) : 0;
  }();
  return milliseconds;
}

void sometimes_sleep() {
  if (latency() > 0) return;
  const unsigned draw = static_cast<unsigned>(generator()());
  if (draw % 4 != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % 1500));
}

}  // namespace

extern "C" {

int MPI_Send_init(const void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
                  MPI_Request* request) {
  return latency() > 0 ? PMPI_Send_init(data, count, type, rank, tag, comm, request)
                       : PMPI_Ssend_init(data, count, type, rank, tag, comm, request);
}

int MPI_Start(MPI_Request* request) {
  sometimes_sleep();
  return PMPI_Start(request);
}

int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  sometimes_sleep();
  std::this_thread::sleep_for(std::chrono::milliseconds(latency()));
  return PMPI_Waitall(count, requests, statuses);
}
}
