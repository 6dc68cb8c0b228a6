// SPDX-License-Identifier: Apache-2.0
//
// Intercepts the MPI calls of one rank (through LD_PRELOAD) and replaces messages between devices
// by NaNs. All bits are ones, which is a NaN in float32, bfloat16 and float16.
//
//   MILLRACE_POISON_RANK=1     the rank that receives them
//   MILLRACE_POISON_FROM=0     affects messages from this rank,
//   MILLRACE_POISON_FIRST=N    starting with the N-th that arrives, counted from 1,
//   MILLRACE_POISON_EVERY=N    every N-th (0: only the first),
//   MILLRACE_POISON_BIT=1      flips only the highest bit of the mantissa of one float32 in the
//                              middle, like a memory error
#include <mpi.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {

long number(const char* name, long otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::strtol(value, nullptr, 10) : otherwise;
}

struct Message {
  void* data = nullptr;
  std::size_t bytes = 0;
  bool expected = false;
};

/// Persistent receives by the address of their request.
std::map<MPI_Request*, Message>& messages() {
  static std::map<MPI_Request*, Message> all;
  return all;
}

bool is_for_this_rank() {
  static const bool result = [] {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return number("MILLRACE_POISON_RANK", -1) == rank;
  }();
  return result;
}

bool is_poisoned(long arrived) {
  static const long first = number("MILLRACE_POISON_FIRST", 0);
  static const long every = number("MILLRACE_POISON_EVERY", 0);
  if (first <= 0 || arrived < first) return false;
  return every > 0 ? (arrived - first) % every == 0 : arrived == first;
}

void poison(const Message& message) {
  static const bool bit = number("MILLRACE_POISON_BIT", 0) != 0;
  if (!bit) {
    std::memset(message.data, 0xff, message.bytes);
    return;
  }
  const std::size_t middle = message.bytes / 2 / 4 * 4;
  static_cast<unsigned char*>(message.data)[middle + 2] ^= 0x40U;
}

void arrive(MPI_Request* request) {
  const auto found = messages().find(request);
  if (found == messages().end() || !found->second.expected) return;
  found->second.expected = false;
  static long arrived = 0;
  if (is_poisoned(++arrived)) poison(found->second);
}

}  // namespace

extern "C" {

int MPI_Recv_init(void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
                  MPI_Request* request) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  if (is_for_this_rank() && rank == number("MILLRACE_POISON_FROM", -1))
    messages()[request] = {data, static_cast<std::size_t>(bytes) * static_cast<std::size_t>(count),
                           false};
  return PMPI_Recv_init(data, count, type, rank, tag, comm, request);
}

int MPI_Start(MPI_Request* request) {
  const auto found = messages().find(request);
  if (found != messages().end()) found->second.expected = true;
  return PMPI_Start(request);
}

int MPI_Testall(int count, MPI_Request* requests, int* flag, MPI_Status* statuses) {
  const int code = PMPI_Testall(count, requests, flag, statuses);
  for (int i = 0; *flag != 0 && i < count; ++i) arrive(requests + i);
  return code;
}

int MPI_Waitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  const int code = PMPI_Waitall(count, requests, statuses);
  for (int i = 0; i < count; ++i) arrive(requests + i);
  return code;
}
}
