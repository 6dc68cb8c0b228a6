// SPDX-License-Identifier: Apache-2.0
#include "train/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "comm/open_mpi.hpp"
#include "core/error.hpp"

namespace millrace::training {
namespace {

/// What the launcher then needs to end its daemons on all hosts that it reaches.
constexpr std::chrono::seconds kDaemon{10};

/// The interval between two checks, and the most of it that counts: any longer gap means that this
/// process was stopped or the machine asleep.
constexpr std::chrono::milliseconds kTick{200};
constexpr std::chrono::seconds kMostOfATick{1};

/// Disks and network file systems may take this many times longer.
constexpr int kDisk = 10;

/// Describes where a stalled process stands: "rank 1: replica 0, stage 1 is at 1F3 and waits for
/// stage 0 (rank 0)". `awaited` is the rank whose contribution to a collective operation is
/// missing, or -1. Without an executor, or between its steps, `phase` describes the process.
std::string describe_position(const pipeline::Executor* executor, int rank, int awaited,
                              std::string_view phase) {
  const pipeline::CurrentAction current =
      executor != nullptr ? executor->recording().current() : pipeline::CurrentAction{};
  const std::string together = awaited >= 0 ? fmt::format(" and waits for rank {}", awaited) : "";
  if (current.replica < 0) return fmt::format("rank {}: {}{}", rank, phase, together);
  const pipeline::Action& action = current.action;
  const std::string text = fmt::format("rank {}: replica {}, stage {} is at {}", rank,
                                       current.replica, action.stage, to_string(action));
  const pipeline::PipelinePlan& plan = executor->plan();
  if (current.awaited_member >= 0)
    return text + fmt::format(" and waits for the batch statistics of replica {} (rank {})",
                              current.awaited_member,
                              plan.rank_of(current.awaited_member, action.stage));
  if (current.awaited < 0) return text + together;
  if (action.kind == pipeline::ActionKind::Update)
    return text + fmt::format(" and waits for the gradients of replica {} (rank {})",
                              current.awaited, plan.rank_of(current.awaited, action.stage));
  return text + fmt::format(" and waits for stage {} (rank {})", current.awaited,
                            plan.rank_of(current.replica, current.awaited));
}

}  // namespace

Watchdog::Watchdog(int rank, int seconds, std::chrono::milliseconds grace)
    : rank_(rank), grace_(grace) {
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

std::string Watchdog::position() const {
  const comm::World* world = world_;
  const int awaited = world != nullptr ? world->awaited() : -1;
  const Session* session = session_;
  if (const char* const disk = disk_) return describe_position(nullptr, rank_, awaited, disk);
  if (session == nullptr) return describe_position(nullptr, rank_, awaited, "is starting");
  return describe_position(session->active(), rank_, awaited, "is between two steps");
}

Watchdog::Sight Watchdog::look() const {
  const comm::World* world = world_;
  const Session* session = session_;
  const pipeline::Executor* executor = session != nullptr ? session->active() : nullptr;
  return {.progress = touched_ + (executor != nullptr ? executor->recording().progress() : 0),
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
  fmt::print(
      stderr,
      "millrace: error: no progress for {} s: {}; raise the hang timeout if it is only slow\n",
      std::chrono::duration_cast<std::chrono::seconds>(quiet).count(), position());
  std::fflush(stderr);
  std::this_thread::sleep_for(grace_);
  comm::remove_shared_memory();
  comm::end_daemon_after(kDaemon);
  std::_Exit(exit_code(ErrorKind::Watchdog));
}

void allocate(Session& session, const comm::World& world, Watchdog& watchdog) {
  std::int64_t left = world.maximum(session.pieces());
  const auto placed = [&] {
    watchdog.touch();
    (void)world.maximum(--left);
  };
  session.allocate(placed);
  while (left > 0) placed();
}

}  // namespace millrace::training
