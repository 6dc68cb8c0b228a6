// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "device/queues.hpp"
#include "pipeline/program.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

/// An entry of the schedule that this process executes.
struct LocalEntry {
  std::int32_t replica = 0;
  Entry entry;
  Action action;
  std::size_t unit = 0;  ///< the stage that it works on, among those of the process
};

/// What a process does for an entry.
enum class Doing : std::uint8_t {
  Work,           ///< kernels, and copies within the process
  Pack,           ///< brings new weights into the order that kernels read, once a step
  Add,            ///< adds up gradients of replicas, also in the middle of other entries
  AwaitMessage,   ///< from another stage or replica
  AwaitSent,      ///< until a message may be overwritten
  AwaitImages,    ///< of the loader
  AwaitAllRanks,  ///< before the update: whether all sums are finite, and their norm
};
[[nodiscard]] std::string_view name_of(Doing doing);
[[nodiscard]] constexpr bool is_work(Doing doing) {
  return doing == Doing::Work || doing == Doing::Pack;
}

/// A process does one thing at a time: for one entry, from `begin` to `end`, in nanoseconds of the
/// steady clock. What it does for an entry may lie in several pieces, with those of other entries
/// between them.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint32_t entry = 0;
  Doing doing = Doing::Work;
};

/// A kernel that ran for an entry: one of the calls in a phase of its stage's program.
struct KernelPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint32_t entry = 0;
  std::uint32_t call = 0;
  Phase phase = Phase::Forward;
};

/// When an entry began and ended, in nanoseconds of the steady clock. Entries that replicas run
/// together begin and end together.
struct ActionRecord {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Action done;  ///< set by the code that ran, for comparison with the schedule
};

/// The current action of a process, readable from another thread at any time.
struct CurrentAction {
  std::int32_t replica = -1;  ///< -1: no action
  Action action;
  std::int32_t awaited = -1;  ///< stage (in an update: replica) whose message is missing, or -1
  std::int32_t awaited_member = -1;  ///< replica whose batch statistics are missing, or -1
};

/// When each entry of a process ran in the last step, what the process did meanwhile, and which
/// entry is running. One thread writes; current() and progress() may be called from others.
class Recording {
 public:
  static constexpr std::int32_t kNobody = -1;
  /// Nanoseconds that never decrease.
  using Clock = std::int64_t (*)();

  /// Memory is taken for `most_pieces` of a step.
  Recording(std::vector<LocalEntry> entries, std::size_t most_pieces);

  /// In the order in which the process executes them.
  [[nodiscard]] std::span<const LocalEntry> entries() const { return entries_; }
  [[nodiscard]] std::span<const ActionRecord> records() const { return records_; }
  /// In order of time, without overlaps. Times between them belong to no entry.
  [[nodiscard]] std::span<const Piece> pieces() const { return pieces_; }
  [[nodiscard]] std::size_t most_pieces() const { return pieces_.capacity(); }
  /// Times are by this clock from now on.
  void set_clock(Clock now) { now_ = now; }
  [[nodiscard]] Clock clock() const { return now_; }
  [[nodiscard]] ActionRecord& at(std::size_t entry) { return records_[entry]; }

  /// Memory is taken for this many kernels of a step. Without it none may be added.
  void reserve_kernels(std::size_t most) { kernels_.reserve(most); }
  [[nodiscard]] std::size_t most_kernels() const { return kernels_.capacity(); }
  /// The kernels of the last step, in order of time, if they were recorded.
  [[nodiscard]] std::span<const KernelPiece> kernels() const { return kernels_; }
  /// The entry at work has run a kernel.
  void add_kernel(Phase phase, std::size_t call, std::int64_t begin, std::int64_t end) {
    kernels_.push_back({begin, end, pieces_.back().entry, static_cast<std::uint32_t>(call), phase});
  }

  void begin_step() {
    pieces_.clear();
    kernels_.clear();
  }
  /// Entries [first, first + count), which run together, begin or end. The first of them works.
  void begin(std::size_t first, std::size_t count);
  void end(std::size_t first, std::size_t count);
  /// From now on the process works for this entry: one of those that run together, or an update
  /// that is completed after all entries.
  void enter(std::size_t entry);
  /// All entries are done; until finish() the process waits for all ranks, which is counted for
  /// this entry. No action is current.
  void await_all_ranks(std::size_t entry) { start(entry, Doing::AwaitAllRanks, now_()); }
  /// The step is over.
  void finish();
  /// Replaces the times of the host's work, which was only to queue kernels, by those of the
  /// device's: `spans`, in order of time, without overlaps. Of the host's waits, what lies between
  /// the spans stays: the device waited for it. Messages become points between the spans of what is
  /// before and after them.
  void take_times_of_device(std::span<const Piece> spans);

  /// While it lives, the process does something else than to work, for the same entry.
  class While {
   public:
    While(Recording& recording, Doing doing) : recording_(recording), before_(recording.doing()) {
      recording_.change(doing);
    }
    ~While() {
      recording_.change(before_);
      recording_.await(kNobody);
      recording_.await_member(kNobody);
    }
    While(const While&) = delete;
    While& operator=(const While&) = delete;

   private:
    Recording& recording_;
    Doing before_;
  };

  /// Whose message the process waits for, as in CurrentAction, until the While ends.
  void await(std::int32_t stage_or_replica) { set(awaited_, stage_or_replica); }
  void await_member(std::int32_t replica) { set(awaited_member_, replica); }

  [[nodiscard]] CurrentAction current() const;
  /// Increases with every entry.
  [[nodiscard]] std::uint64_t progress() const { return progress_.load(); }

 private:
  template <class T>
  static void set(std::atomic<T>& to, T value) {
    to.store(value, std::memory_order_relaxed);
  }

  void take_times_of_records(std::span<const Piece> spans);
  [[nodiscard]] Doing doing() const { return pieces_.back().doing; }
  /// The process goes on with the same entry.
  void change(Doing doing);
  /// Ends the last piece, and begins another.
  void start(std::size_t entry, Doing doing, std::int64_t now);
  void close(std::int64_t now);

  Clock now_ = steady_nanoseconds;
  std::vector<LocalEntry> entries_;
  std::vector<ActionRecord> records_;  ///< by entry
  std::vector<Piece> pieces_;
  std::vector<Piece> host_pieces_;  ///< room for take_times_of_device()
  std::vector<KernelPiece> kernels_;
  bool open_ = false;  ///< whether the last piece goes on
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> running_{-1};  ///< entry
  std::atomic<std::int32_t> awaited_{kNobody};
  std::atomic<std::int32_t> awaited_member_{kNobody};
};

/// When a device worked, by its own clock: where kernels wait in a queue, the host only knows when
/// it queued them. Nothing is measured on cores, where the host's times are those of the work.
class DeviceSpans {
 public:
  /// Memory is taken for `most` spans of a step.
  explicit DeviceSpans(std::size_t most);

  /// A step whose spans nobody asks for has none.
  void begin_step(bool asked) {
    asked_ = asked;
    count_ = 0;
  }
  /// The kernels that are queued between these two work for `entry`.
  void begin(const device::ExecutionSpace& space, std::size_t entry, Doing doing);
  void end(const device::ExecutionSpace& space);
  /// The spans of the step in nanoseconds of the clock `now`, in order, once the device has done
  /// everything. Valid until the next step.
  [[nodiscard]] std::span<const Piece> times(const device::ExecutionSpace& space,
                                             Recording::Clock now);

 private:
  struct Span {
    device::Event begin;
    device::Event end;
    std::uint32_t entry = 0;
    Doing doing = Doing::Work;
  };

  std::vector<Span> spans_;
  bool asked_ = true;
  std::size_t count_ = 0;  ///< of them, those of this step
  std::vector<Piece> times_;
  device::Event last_;
};

}  // namespace millrace::pipeline
