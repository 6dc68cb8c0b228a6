// SPDX-License-Identifier: Apache-2.0
//
// Teams of the fake device. The threads of a team are fibres of the host thread that runs it: each
// runs until it waits for its team, or to its end, and then the next one does. The first one and
// the direction change from wait to wait and from team to team, so that threads that forgot to wait
// compute other results, and the same ones in every run.
//
// Before a team begins, its shared memory holds NaN (bytes of ones). A thread that ends where
// others wait ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::device {
namespace fake {
class TeamThread;
}

/// What a kernel knows of its team.
class Team {
 public:
  Team(fake::TeamThread& thread, int rank, int size, std::byte* shared)
      : thread_(thread), rank_(rank), size_(size), shared_(shared) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  void wait() const;
  [[nodiscard]] std::byte* shared() const { return shared_; }

 private:
  fake::TeamThread& thread_;
  int rank_;
  int size_;
  std::byte* shared_;
};

namespace fake {

/// A thread of team i of a kernel.
using TeamFunction = void (*)(const void* functor, const Team& team, std::int64_t i);

/// A kernel of teams.
struct TeamKernel {
  TeamFunction run;
  const void* functor;
  int threads;
  std::size_t shared_bytes;
};

/// Runs team i on this host thread.
void run_team(const TeamKernel& kernel, std::int64_t i);

}  // namespace fake
}  // namespace millrace::device
