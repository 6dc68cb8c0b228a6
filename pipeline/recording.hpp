// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/clock.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

/// An entry of the schedule that this process executes.
struct LocalEntry {
  std::int32_t replica = 0;
  Entry entry;
  Action action;
  std::size_t unit = 0;  ///< the stage that it works on, among those of the process
};

/// Times of one entry, in nanoseconds of the steady clock. Waiting counts as if it were all at the
/// beginning. Entries that replicas run together have the same begin and end.
struct ActionRecord {
  std::int64_t begin = 0;
  std::int64_t receive_wait = 0;  ///< includes time in which other replicas run
  std::int64_t send_wait = 0;
  std::int64_t load_wait = 0;  ///< for images
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

/// Adds the nanoseconds of its life to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(std::int64_t& sum) : sum_(sum), begin_(steady_nanoseconds()) {}
  ~Stopwatch() { sum_ += steady_nanoseconds() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::int64_t& sum_;
  std::int64_t begin_;
};

/// When each entry of a process ran in the last step, and which one is running. One thread writes;
/// current() and progress() may be called from others.
class Recording {
 public:
  static constexpr std::int32_t kNobody = -1;

  explicit Recording(std::vector<LocalEntry> entries);

  /// In the order in which the process executes them.
  [[nodiscard]] std::span<const LocalEntry> entries() const { return entries_; }
  [[nodiscard]] std::span<const ActionRecord> records() const { return records_; }
  [[nodiscard]] ActionRecord& at(std::size_t entry) { return records_[entry]; }

  /// Entries [first, first + count), which run together, begin or end.
  void begin(std::size_t first, std::size_t count);
  void end(std::size_t first, std::size_t count);
  /// Of the entries that run together, this one runs now.
  void enter(std::size_t entry) { set(running_, static_cast<std::int64_t>(entry)); }
  /// The step is over.
  void finish() { running_ = -1; }

  /// Whose message the process waits for, as in CurrentAction; kNobody once it has arrived.
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

  std::vector<LocalEntry> entries_;
  std::vector<ActionRecord> records_;  ///< by entry
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> running_{-1};  ///< entry
  std::atomic<std::int32_t> awaited_{kNobody};
  std::atomic<std::int32_t> awaited_member_{kNobody};
};

}  // namespace millrace::pipeline
