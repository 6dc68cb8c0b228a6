// SPDX-License-Identifier: Apache-2.0
//
// src/comm: what passes between processes. MPI's names appear in this folder only.
//
// world      lifetime of MPI, which of how many processes this is, and what all do together
// transport  messages between two ranks whose partners and buffers are fixed beforehand
//
// A process that no launcher started (mpirun, mpiexec, srun) is a world of its own and never
// touches MPI: start-up stays fast, and a machine without a working MPI still trains in one
// process. Everything here works alike in such a world.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace::comm {

/// Whether mpirun, mpiexec or srun started this process.
[[nodiscard]] bool started_by_launcher();

/// The rank that a launcher has given this process; 0 where it says none. Known before MPI starts.
[[nodiscard]] int launched_rank();

/// Whether this build is for Open MPI, whose launcher knows other options than MPICH's.
[[nodiscard]] bool is_open_mpi() noexcept;

/// First line of what the MPI library says of itself.
[[nodiscard]] std::string library_version();
[[nodiscard]] std::string host_name();

/// Removes the files in /dev/shm that Open MPI's ranks of this machine share, which stay there when
/// processes end without leave and no launcher of ours looks after them. For any thread, just
/// before the end.
void remove_shared_memory() noexcept;

/// Lifetime of MPI (thread level FUNNELED), when a launcher started this process. MPI can be
/// started once a process: so can a World. The functions below are collective: all ranks call them
/// in the same order. Errors of MPI are fatal, as no process can go on without its peers.
class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Ranks of this machine, and which of them this is.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  /// Highest tag that a message may have.
  [[nodiscard]] int highest_tag() const noexcept { return highest_tag_; }

  /// `text` of rank 0, everywhere.
  [[nodiscard]] std::string broadcast(std::string text) const;
  /// Sums over the ranks, element by element, everywhere. Exact, whatever the order, when of each
  /// element only one rank's is not zero.
  void add(std::span<double> values) const;
  /// Maxima over the ranks, element by element, everywhere.
  void maximum(std::span<std::int64_t> values) const;
  [[nodiscard]] std::int64_t maximum(std::int64_t value) const;
  /// The texts of all ranks on rank 0, by rank; nothing elsewhere.
  [[nodiscard]] std::vector<std::string> gather(const std::string& text) const;
  /// The numbers of all ranks of this machine, rank by rank, on each of them.
  [[nodiscard]] std::vector<int> gather_here(const std::vector<int>& numbers) const;
  void barrier() const;
  /// Nanoseconds to add to this process' steady clock so that it agrees with rank 0's. Collective.
  [[nodiscard]] std::int64_t clock_offset() const;

  /// The rank whose part one of these functions waits for in this process now, or -1. For any
  /// thread.
  [[nodiscard]] int awaited() const noexcept;

  /// Notes that all ranks are about to fail with the same error, so that nobody needs to be ended.
  void fail_together() const noexcept { failing_together_ = true; }
  [[nodiscard]] bool failing_together() const noexcept { return failing_together_; }
  /// Ends the processes of all ranks at once with `code`.
  [[noreturn]] void abort(int code) const;

 private:
  class Peers;
  template <class T, class Combine>
  void reduce(std::span<T> values, Combine combine) const;

  std::unique_ptr<Peers> peers_;  ///< null in a world of its own
  bool initialised_ = false;
  mutable bool failing_together_ = false;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  int highest_tag_ = 0x7fffffff;
};

}  // namespace millrace::comm
