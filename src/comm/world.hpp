// SPDX-License-Identifier: Apache-2.0
//
// src/comm: communication between processes. Names of MPI and NCCL appear in this folder only.
//
// world      lifetime of MPI, rank and number of ranks, collective functions, and what a process
//            does while it waits
// transport  point-to-point messages with fixed partners and buffers (the all-reduce of gradients,
//            built from them, is pipeline/all_reduce.hpp); rank_messages between ranks, by MPI or
//            NCCL
// route      which of the two
//
// A process that was not started by a launcher (mpirun, mpiexec, srun), nor given a communicator,
// forms a world of one rank and never calls MPI, so that start-up stays fast and training in one
// process needs no working MPI. Everything here behaves the same in such a world.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::comm {

class World;

/// What a process does between two looks at a message that has not arrived: nothing, which answers
/// fastest, or, where ranks share cores, a short sleep. A process that looks without pause takes
/// its core from the ranks that compute, and the system counts it as busy and moves nobody there.
class Patience {
 public:
  /// `guest`: a world whose ranks tell each other when one fails, which ends the wait.
  explicit Patience(bool sleeps, const World* guest = nullptr) : sleeps_(sleeps), guest_(guest) {}
  /// Whether the process has to look again and again; otherwise MPI may wait for it.
  [[nodiscard]] bool looks() const { return sleeps_ || guest_ != nullptr; }
  /// Call after a look that found nothing. Sleeps become longer, up to 0.2 ms. Errors: those of
  /// World::look_for_failures().
  void pause();

 private:
  bool sleeps_;
  const World* guest_;
  int looks_ = 0;
  std::chrono::microseconds sleep_{20};
};

/// Whether mpirun, mpiexec or srun started this process.
[[nodiscard]] bool started_by_launcher();

/// The rank that the launcher assigned to this process; 0 without a launcher. Available before MPI
/// is initialized.
[[nodiscard]] int launched_rank();

/// Whether this build uses Open MPI, whose launcher has different options than MPICH's.
[[nodiscard]] bool is_open_mpi() noexcept;

/// Whether the MPI library says that it can read and write the memory of NVIDIA's GPUs, or AMD's.
/// Open MPI says so; of other libraries it is not known.
[[nodiscard]] bool reaches_cuda_memory() noexcept;
[[nodiscard]] bool reaches_rocm_memory() noexcept;

/// Whether the program has ended MPI: what is left of it can only be forgotten.
[[nodiscard]] bool has_ended_mpi() noexcept;

/// Name and version of the MPI library, up to the first comma or line break.
[[nodiscard]] std::string library_version();
/// The name of a device of this machine among those of all machines; "" if it has none.
[[nodiscard]] std::string of_this_machine(std::string_view device);

/// Removes the files in /dev/shm that Open MPI's ranks on this machine share. Open MPI leaves them
/// behind if a process ends without MPI_Finalize and its launcher does not clean up. Call it just
/// before the process ends, from any thread.
void remove_shared_memory() noexcept;

/// Ranks that work together, with a communicator of their own. Functions marked collective must be
/// called by all ranks in the same order.
class World {
 public:
  /// Says that a world has one rank, whoever started this process.
  struct Alone {};
  /// Says that the program is somebody else's and goes on after an error: errors of MPI are thrown,
  /// and a rank that fails tells the others.
  struct Guest {
    const void* communicator = nullptr;  ///< address of an MPI_Comm; null: all that were launched
  };

  /// The ranks that the launcher started. MPI starts with the first such world, unless the program
  /// has started it, for calls of this thread (FUNNELED), and stays until the process ends. Errors
  /// of MPI are fatal, because no process can continue without its peers. Errors: Usage, for a
  /// value of MILLRACE_MESSAGES other than mpi, before MPI is initialized.
  World();
  explicit World(Alone) noexcept;
  /// Collective. Errors: as World(); Config if MPI does not run, this process is not among the
  /// ranks, or this thread may not call MPI.
  explicit World(Guest guest);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Rank among the ranks on this machine, and their number.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  /// Highest message tag that MPI supports.
  [[nodiscard]] int highest_tag() const noexcept { return highest_tag_; }

  /// Collective: returns `text` of rank 0 on all ranks.
  [[nodiscard]] std::string broadcast(std::string text) const;
  /// Collective (all-reduce): replaces `values` by their element-wise sums over all ranks. Exact if
  /// at most one rank has a nonzero value for each element.
  void add(std::span<double> values) const;
  /// Collective (all-reduce): replaces `values` by their element-wise maxima over all ranks.
  void maximum(std::span<std::int64_t> values) const;
  [[nodiscard]] std::int64_t maximum(std::int64_t value) const;
  /// Collective: returns the texts of all ranks, indexed by rank, on rank 0; empty on other ranks.
  [[nodiscard]] std::vector<std::string> gather(const std::string& text) const;
  /// Collective (all-gather): returns the concatenated texts of all ranks, in rank order, on every
  /// rank.
  [[nodiscard]] std::string gather_everywhere(const std::string& text) const;
  /// Collective (all-gather): returns the concatenated numbers of the ranks on this machine, in
  /// rank order.
  [[nodiscard]] std::vector<int> gather_here(const std::vector<int>& numbers) const;
  /// Collective.
  void barrier() const;
  /// Collective: returns the nanoseconds to add to this process' steady clock to match rank 0's.
  [[nodiscard]] std::int64_t clock_offset() const;

  /// The rank that a collective function of this process is waiting for now, or -1. Callable from
  /// any thread.
  [[nodiscard]] int awaited() const noexcept;

  /// Records that ranks on this machine share cores: from now on they sleep while they wait.
  void share_cores() const noexcept { shares_cores_ = true; }
  /// For a wait that begins now.
  [[nodiscard]] Patience patience() const noexcept {
    return Patience(shares_cores_, is_guest_ ? this : nullptr);
  }
  /// Address of the MPI_Comm of its ranks; null without MPI.
  [[nodiscard]] const void* communicator() const noexcept;

  /// Records that all ranks are about to fail with the same error, so that none has to be aborted.
  void fail_together() const noexcept {
    if (size_ > 1) failing_together_ = true;
  }
  [[nodiscard]] bool failing_together() const noexcept { return failing_together_; }
  /// Ends the processes of all ranks immediately with exit code `code`.
  [[noreturn]] void abort(int code) const;

  /// For guests, which end no process: begins a piece of work. Errors: Peer if a rank failed at one
  /// before; Config if this thread may not call MPI.
  void begin() const;
  /// This rank fails at it. Unless they fail together, the others throw where they wait.
  void tell_failure() const noexcept;
  /// Errors: Peer, naming a rank that has told its failure.
  void look_for_failures() const;
  [[nodiscard]] bool has_failed() const noexcept { return failed_ >= 0; }

 private:
  class Peers;
  void join(const void* communicator);
  template <class T, class Combine>
  void reduce(std::span<T> values, Combine combine) const;

  std::unique_ptr<Peers> peers_;  ///< null in a world without MPI
  bool is_guest_ = false;         ///< of several ranks
  mutable int failed_ = -1;       ///< a rank of those
  mutable bool failing_together_ = false;
  mutable bool shares_cores_ = false;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  int highest_tag_ = 0x7fffffff;
};

/// The number of tasks that srun started, if MPI has not joined them, so that each is a world of
/// its own and would do all of the work; otherwise 0. Tasks that TF_CONFIG tells apart may be
/// separate.
[[nodiscard]] int separate_tasks(const World& world);

}  // namespace millrace::comm
