// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/goodput.hpp"
#include "train/agreement.hpp"

namespace millrace::training {
namespace {

/// How far a process is; the maximum over all ranks counts.
constexpr std::int64_t kDone = 0;
constexpr std::int64_t kBusy = 1;

/// CPU time of the calling thread so far.
double seconds_of_thread() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::span<const CheckpointCost> costs, double CheckpointCost::*part) {
  std::vector<double> values;
  for (const CheckpointCost& cost : costs) values.push_back(cost.*part);
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double best_interval(const CheckpointCost& cost, double seconds_between_failures) {
  // If the training uses all cores, CPU time of the writing thread is lost to it.
  return partition::young_interval(cost.waited_seconds + cost.busy_seconds,
                                   seconds_between_failures);
}

std::string describe(std::span<const CheckpointCost> costs, double run_seconds,
                     std::string_view what) {
  constexpr double kHour = 3600.0;
  if (costs.size() < 2) return {};
  const std::span<const CheckpointCost> later = costs.subspan(1);
  CheckpointCost typical = later.back();
  typical.waited_seconds = median(later, &CheckpointCost::waited_seconds);
  typical.written_seconds = median(later, &CheckpointCost::written_seconds);
  typical.busy_seconds = median(later, &CheckpointCost::busy_seconds);
  std::string text = fmt::format(
      "{}: {}, {} each on rank 0; training waited {:.0f} ms for each, writing took another {:.2f} "
      "s",
      what, costs.size(), human_bytes(typical.bytes), 1e3 * typical.waited_seconds,
      typical.written_seconds);
  if (run_seconds >= kHour)
    text +=
        fmt::format(". With one failure a day, `checkpoint-every` {} loses the least time (Young)",
                    partition::minutes_text(best_interval(typical, 24.0 * kHour)));
  return text;
}

CheckpointWriter::CheckpointWriter(const comm::World& world, const Session& session,
                                   std::filesystem::path directory, Hooks hooks)
    : world_(&world),
      session_(&session),
      directory_(std::move(directory)),
      hooks_(std::move(hooks)) {}

void CheckpointWriter::release() {
  copies_.clear();
  partners_ = nullptr;
  reserved_ = false;
}

void CheckpointWriter::reserve(PartnerSnapshots* partners) {
  release();
  reserved_ = true;
  partners_ = partners;
  if (partners != nullptr) {
    copies_ = partners->take_copies();
  } else {
    copies_.push_back({.part = world_->rank(),
                       .tensors = session_->tensors(),
                       .values = session_->tensors().make_snapshot()});
  }
}

/// Those of checkpoints, or `all`.
void CheckpointWriter::copy_tensors(bool all) {
  cost_ = {};
  for (StageCopy& copy : copies_) {
    if (!all && !copy.is_saved) continue;
    copy.tensors.take(copy.values);
    cost_.bytes += std::ssize(copy.values.bytes());
  }
}

void CheckpointWriter::begin(io::CheckpointHeader header, io::Retention retention) {
  const Timer waiting;
  settle();
  if (!reserved_) reserve();
  copy_tensors(false);
  header_ = std::move(header);
  retention_ = std::move(retention);
  FailTogether(*world_).lead([this] { staging_.emplace(directory_, header_); });
  const std::filesystem::path place = world_->broadcast(staging_ ? staging_->path().string() : "");
  const bool alone = world_->size() == 1;  // no other part to wait for
  phase_ = alone ? Phase::Commit : Phase::Parts;
  run_behind([this, place, alone] {
    std::string part = write_part(place);
    return alone ? commit({part}) : part;
  });
  cost_.waited_seconds = waiting.seconds();
  writing_ = Timer();
}

void CheckpointWriter::begin_snapshot(io::CheckpointHeader header) {
  const Timer waiting;
  settle();
  copy_tensors(true);
  header_ = std::move(header);
  partners_->start_messages();
  phase_ = Phase::Snapshot;
  (void)progress();  // nothing to wait for where nothing is sent
  cost_.waited_seconds = waiting.seconds();
  writing_ = Timer();
}

void CheckpointWriter::run_behind(std::function<std::string()> work) {
  task_ = std::async(std::launch::async, [work = std::move(work)] {
    const double before = seconds_of_thread();
    std::string text = work();
    return Done{std::move(text), seconds_of_thread() - before};
  });
}

std::string CheckpointWriter::write_part(const std::filesystem::path& place) const {
  std::vector<io::NamedTensor> tensors;
  for (const StageCopy& copy : copies_) {
    if (!copy.is_saved) continue;
    hooks_.before(copy.values, header_);
    tensors.insert(tensors.end(), copy.values.tensors().begin(), copy.values.tensors().end());
  }
  return io::write_checkpoint_part(place, world_->rank(), header_, tensors);
}

std::int64_t CheckpointWriter::progress() {
  if (phase_ == Phase::Snapshot && !task_.valid()) {
    if (!partners_->arrived()) return kBusy;
    run_behind([this] {
      for (const StageCopy& copy : copies_) hooks_.before(copy.values, header_);
      return partners_->write(copies_, header_);
    });
  }
  if (!task_.valid()) return kDone;
  return task_.wait_for(std::chrono::seconds(0)) == std::future_status::ready ? kDone : kBusy;
}

void CheckpointWriter::advance(std::int64_t slowest) {
  if (slowest != kDone || phase_ == Phase::Idle) return;
  try {
    if (phase_ == Phase::Parts)
      gather_parts();
    else if (phase_ == Phase::Commit)
      conclude();
    else
      conclude_snapshot();
  } catch (const Error&) {
    phase_ = Phase::Idle;
    staging_.reset();
    throw;
  }
}

/// What the task of this rank says, if those of all ranks have succeeded.
std::string CheckpointWriter::take_text() {
  Done done;
  FailTogether(*world_).run([&] { done = task_.get(); });
  cost_.busy_seconds += done.busy_seconds;
  return done.text;
}

/// All parts are written: rank 0 makes one checkpoint of them.
void CheckpointWriter::gather_parts() {
  std::vector<std::string> parts = world_->gather(take_text());
  phase_ = Phase::Commit;
  if (world_->rank() != 0) return;
  run_behind([this, parts = std::move(parts)] { return commit(parts); });
}

std::string CheckpointWriter::commit(const std::vector<std::string>& parts) {
  const std::filesystem::path path =
      staging_->commit(parts, session_->tensors().checkpoint_tensors());
  io::retire_checkpoints(directory_, retention_);
  return path.string();
}

void CheckpointWriter::conclude() {
  FailTogether(*world_).lead([this] {
    const Done checkpoint = task_.get();
    cost_.busy_seconds += checkpoint.busy_seconds;
    cost_.written_seconds = writing_.seconds();
    costs_.push_back(cost_);
    hooks_.saved(checkpoint.text);
  });
  staging_.reset();
  phase_ = Phase::Idle;
}

void CheckpointWriter::conclude_snapshot() {
  const std::string trouble = partners_->conclude(header_.iteration, take_text());
  phase_ = Phase::Idle;
  if (!trouble.empty()) return hooks_.gave_up(trouble);
  cost_.written_seconds = writing_.seconds();
  snapshot_costs_.push_back(cost_);
}

void CheckpointWriter::settle() {
  constexpr std::chrono::milliseconds kBeat{100};
  constexpr std::chrono::milliseconds kLook{1};
  while (phase_ != Phase::Idle) {
    if (task_.valid()) (void)task_.wait_for(kBeat);
    const std::int64_t own = progress();
    if (own == kBusy) std::this_thread::sleep_for(kLook);  // messages are looked at
    const std::int64_t slowest = world_->maximum(own);
    hooks_.waiting(own == kBusy);
    advance(slowest);
  }
}

}  // namespace millrace::training
