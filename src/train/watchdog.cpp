// SPDX-License-Identifier: Apache-2.0
#include "train/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/error.hpp"

namespace millrace::train {
namespace {

/// Time between the first rank that gives up and the end of all, so that each prints its line.
constexpr std::chrono::seconds kGrace{2};

/// The interval between two checks, and the most of it that counts: any longer gap means that this
/// process was stopped or the machine asleep.
constexpr std::chrono::milliseconds kTick{200};
constexpr std::chrono::seconds kMostOfATick{1};

/// Disks and network file systems may take this many times longer.
constexpr int kDisk = 10;

}  // namespace

std::string describe_standing(const pipeline::Executor* executor, int rank, int awaited,
                              std::string_view phase) {
  const pipeline::Standing standing =
      executor != nullptr ? executor->standing() : pipeline::Standing{};
  const std::string together = awaited >= 0 ? fmt::format(" and waits for rank {}", awaited) : "";
  if (standing.replica < 0) return fmt::format("rank {}: {}{}", rank, phase, together);
  const pipeline::Action& action = standing.action;
  const std::string text = fmt::format("rank {}: replica {}, stage {} is at {}", rank,
                                       standing.replica, action.stage, to_string(action));
  const pipeline::PipelinePlan& plan = executor->plan();
  if (standing.awaited_member >= 0)
    return text + fmt::format(" and waits for the batch statistics of replica {} (rank {})",
                              standing.awaited_member,
                              plan.ranks.rank_of(standing.awaited_member,
                                                 plan.schedule.device(action.stage)));
  if (standing.awaited < 0) return text + together;
  if (action.kind == pipeline::ActionKind::Update)
    return text +
           fmt::format(" and waits for the gradients of replica {} (rank {})", standing.awaited,
                       plan.ranks.rank_of(standing.awaited, plan.schedule.device(action.stage)));
  return text +
         fmt::format(" and waits for stage {} (rank {})", standing.awaited,
                     plan.ranks.rank_of(standing.replica, plan.schedule.device(standing.awaited)));
}

Watchdog::Watchdog(int rank, int seconds) : rank_(rank) {
  if (seconds > 0) thread_ = std::thread([this, seconds] { watch(std::chrono::seconds(seconds)); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Watchdog::standing() const {
  const comm::World* world = world_;
  const int awaited = world != nullptr ? world->awaited() : -1;
  const Session* session = session_;
  if (const char* const disk = disk_) return describe_standing(nullptr, rank_, awaited, disk);
  if (session == nullptr) return describe_standing(nullptr, rank_, awaited, "is starting");
  return describe_standing(session->active(), rank_, awaited, "is between two steps");
}

Watchdog::Sight Watchdog::look() const {
  const comm::World* world = world_;
  const Session* session = session_;
  const pipeline::Executor* executor = session != nullptr ? session->active() : nullptr;
  return {.progress = touched_ + (executor != nullptr ? executor->progress() : 0),
          .awaited = world != nullptr ? world->awaited() : -1,
          .on_disk = disk_ != nullptr,
          .disks = disks_};
}

void Watchdog::watch(std::chrono::seconds limit) {
  Sight before;
  Clock::time_point last = Clock::now();
  Clock::duration quiet{0};
  Clock::duration on_disk{0};
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, kTick, [this] { return ending_; })) {
    const Clock::time_point now = Clock::now();
    const auto passed = std::min<Clock::duration>(now - last, kMostOfATick);
    const Sight sight = look();
    const bool moved = sight.progress != before.progress || sight.awaited != before.awaited;
    quiet = moved ? Clock::duration{0} : quiet + passed;
    on_disk = sight.on_disk && sight.disks == before.disks ? on_disk + passed : Clock::duration{0};
    last = now;
    before = sight;
    const bool own_disk = sight.on_disk && sight.awaited < 0;
    if (quiet >= (own_disk ? kDisk * limit : limit) || on_disk >= kDisk * limit)
      give_up(std::max(quiet, on_disk));
  }
}

void Watchdog::give_up(Clock::duration quiet) const {
  fmt::print(stderr,
             "millrace: error: no progress for {} s: {}; raise --hang-timeout if it is only slow\n",
             std::chrono::duration_cast<std::chrono::seconds>(quiet).count(), standing());
  std::fflush(stderr);
  std::this_thread::sleep_for(kGrace);
  comm::remove_shared_memory();
  std::_Exit(exit_code(ErrorKind::Watchdog));
}

}  // namespace millrace::train
