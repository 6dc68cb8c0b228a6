// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "comm/world.hpp"
#include "train/session.hpp"

namespace millrace::train {

/// What a process says of itself when nothing moves: "rank 1: replica 0, stage 1 is at 1F3 and
/// waits for stage 0 (rank 0)". `awaited` is the rank whose part of something that all do together
/// is missing, or -1. Without an executor, or between its steps, the process is at `phase`.
[[nodiscard]] std::string describe_standing(const pipeline::Executor* executor, int rank,
                                            int awaited, std::string_view phase);

/// Ends the process with code 124 when nothing has gone on for `seconds`, after it has said on
/// standard error where it stands. Time in which the whole process was stopped does not count.
/// Every rank has one, and they wait a little for each other, so that all are heard. It calls
/// nothing of MPI, so it may be there before MPI is. 0 seconds: it never does.
class Watchdog {
 public:
  Watchdog(int rank, int seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on it can say which rank this process waits for. It must outlive this.
  void follow(const comm::World& world) { world_ = &world; }
  /// From now on the actions of this session count as progress. It must outlive this.
  void follow(const Session& session) { session_ = &session; }
  /// Something else than an action has been done.
  void touch() { ++touched_; }

  /// While one of these lives, the process waits for a disk, and has ten times as long in all,
  /// whatever goes on meanwhile; but for another rank no longer than otherwise.
  class Disk {
   public:
    /// `doing` is a literal, for people: "is writing a checkpoint".
    Disk(Watchdog& watchdog, const char* doing) : watchdog_(watchdog) {
      ++watchdog_.disks_;
      watchdog_.disk_ = doing;
    }
    ~Disk() {
      watchdog_.disk_ = nullptr;
      watchdog_.touch();
    }
    Disk(const Disk&) = delete;
    Disk& operator=(const Disk&) = delete;

   private:
    Watchdog& watchdog_;
  };
  /// While such a one lives: all ranks have just answered each other, and this one does that.
  void answered(const char* doing) {
    disk_ = doing;
    touch();
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// What changes while something goes on.
  struct Sight {
    std::uint64_t progress = 0;
    int awaited = -1;         ///< rank
    bool on_disk = false;     ///< the process waits for one
    std::uint64_t disks = 0;  ///< that were waited for so far
  };

  void watch(std::chrono::seconds limit);
  [[nodiscard]] Sight look() const;
  [[noreturn]] void give_up(Clock::duration quiet) const;
  [[nodiscard]] std::string standing() const;

  std::atomic<const comm::World*> world_{nullptr};
  std::atomic<const Session*> session_{nullptr};
  int rank_;
  std::atomic<std::uint64_t> touched_{0};
  std::atomic<const char*> disk_{nullptr};
  std::atomic<std::uint64_t> disks_{0};  ///< that were waited for so far
  std::mutex mutex_;
  std::condition_variable end_;
  bool ending_ = false;
  std::thread thread_;  ///< last: it uses all the others
};

}  // namespace millrace::train
