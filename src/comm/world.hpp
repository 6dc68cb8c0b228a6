// SPDX-License-Identifier: Apache-2.0
//
// src/comm: what passes between processes. MPI's names appear in this folder only.
//
// world   lifetime of MPI, and which of how many processes this is
//
// A process that no launcher started (mpirun, mpiexec, srun) is a world of its own and never
// touches MPI: start-up stays fast, and a machine without a working MPI still trains on one device.
#pragma once

namespace millrace::comm {

/// Lifetime of MPI (thread level FUNNELED), when a launcher started this process. MPI can be
/// started once a process: so can a World.
class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

 private:
  bool initialised_ = false;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace millrace::comm
