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

namespace millrace::training {

/// Ends the process with code 124 if there was no progress for `seconds`, after printing to
/// standard error where it stands. Time in which the whole process was stopped does not count.
/// Every rank has a watchdog; they wait briefly for each other, so that every rank's line is
/// printed. It makes no MPI calls, so it can be created before MPI is initialized. 0 seconds:
/// disabled.
class Watchdog {
 public:
  /// The time that a rank which gives up waits before it ends, so that others print their lines,
  /// too. Less under a supervisor, which also asks the hosts.
  [[nodiscard]] static constexpr std::chrono::milliseconds grace(bool supervised) {
    return std::chrono::seconds(supervised ? 1 : 2);
  }

  Watchdog(int rank, int seconds, std::chrono::milliseconds grace = Watchdog::grace(false));
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on messages can name the rank that this process waits for. `world` must outlive this.
  void follow(const comm::World& world) { world_ = &world; }
  /// From now on the actions of this session count as progress. `session` must outlive this.
  void follow(const Session& session) { session_ = &session; }
  /// Counts as progress that is not an action of the session.
  void touch() { ++touched_; }

  /// While such an object lives, the process waits for a disk and may take ten times as long in
  /// total, whatever else happens. The limit for waiting for another rank stays the same.
  class Disk {
   public:
    /// `doing` is a string literal for people: "is writing a checkpoint".
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
  /// While a Disk lives: all ranks have just answered each other, and this rank is doing `doing`.
  void answered(const char* doing) {
    disk_ = doing;
    touch();
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// The observations of one check; they change while there is progress.
  struct Sight {
    std::uint64_t progress = 0;
    int awaited = -1;         ///< rank
    bool on_disk = false;     ///< the process waits for a disk
    std::uint64_t disks = 0;  ///< number of waits for disks so far
  };

  void watch(std::chrono::seconds limit);
  [[nodiscard]] Sight look() const;
  [[noreturn]] void give_up(Clock::duration quiet) const;
  [[nodiscard]] std::string position() const;

  std::atomic<const comm::World*> world_{nullptr};
  std::atomic<const Session*> session_{nullptr};
  int rank_;
  std::chrono::milliseconds grace_;
  std::atomic<std::uint64_t> touched_{0};
  std::atomic<const char*> disk_{nullptr};
  std::atomic<std::uint64_t> disks_{0};  ///< number of waits for disks so far
  std::mutex mutex_;
  std::condition_variable end_;
  bool ending_ = false;
  std::thread thread_;  ///< last member: it uses all the others
};

/// Allocates the memory of a session. All ranks meet after each piece, so that one with more
/// memory, or on a busy machine, is not taken for a lost one. Collective.
void allocate(Session& session, const comm::World& world, Watchdog& watchdog);

}  // namespace millrace::training
