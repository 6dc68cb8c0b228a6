// SPDX-License-Identifier: Apache-2.0
#include "train/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/counted.hpp"
#include "core/text.hpp"

namespace millrace::training {
namespace {

using pipeline::ActionKind;
using pipeline::Doing;
using pipeline::LocalEntry;
using pipeline::Piece;
using pipeline::StageCost;

double seconds(std::int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

void add_to_device(DeviceTimes& times, ActionKind kind, const Piece& piece) {
  const double time = seconds(piece.end - piece.begin);
  const bool sums = kind == ActionKind::Reduce || kind == ActionKind::Update;
  switch (piece.doing) {
    case Doing::Work:
    case Doing::Pack:
      if (kind == ActionKind::Forward)
        times.forward += time;
      else if (kind == ActionKind::Update)
        times.update += time;
      else if (pipeline::is_compute(kind))
        times.backward += time;
      break;
    case Doing::Add:
      times.reduce += time;
      break;
    case Doing::AwaitMessage:
      (sums ? times.reduce : times.receive_wait) += time;
      break;
    case Doing::AwaitSent:
      times.send_wait += time;
      break;
    case Doing::AwaitImages:
      times.load_wait += time;
      break;
    case Doing::AwaitAllRanks:
      times.ranks_wait += time;
      break;
  }
}

void add_to_stage(StageCost& cost, ActionKind kind, const Piece& piece) {
  if (!pipeline::is_work(piece.doing)) return;
  const double work = seconds(piece.end - piece.begin);
  if (kind == ActionKind::Forward) cost.forward += work;
  if (kind == ActionKind::Backward || kind == ActionKind::BackwardInput)
    cost.backward_input += work;
  if (kind == ActionKind::BackwardWeight) cost.backward_weight += work;
  if (kind == ActionKind::Update) cost.update += work;
}

/// The doubles of a structure as a span, for communication.
template <class T>
std::span<double> numbers(std::vector<T>& values) {
  static_assert(sizeof(T) % sizeof(double) == 0);
  return {reinterpret_cast<double*>(values.data()), values.size() * sizeof(T) / sizeof(double)};
}

std::size_t place_of(const pipeline::PipelinePlan& plan, const LocalEntry& entry) {
  return static_cast<std::size_t>(plan.place_of(entry.replica, entry.action.stage));
}

/// The stages of a device, also of several replicas: "3 4; 0".
std::string stages_at(const pipeline::PipelinePlan& plan, std::int32_t place) {
  std::vector<std::string> parts;
  for (std::int32_t r = 0; r < plan.ranks.replicas; ++r) {
    std::vector<std::int32_t> stages;
    for (std::int32_t s = 0; s < plan.schedule.stages; ++s)
      if (plan.place_of(r, s) == place) stages.push_back(s);
    if (!stages.empty()) parts.push_back(join(stages, " "));
  }
  return join(parts, "; ");
}

}  // namespace

PipelineStatistics::PipelineStatistics(const pipeline::Executor& executor) : executor_(&executor) {
  const pipeline::PipelinePlan& plan = executor.plan();
  const auto devices = static_cast<std::size_t>(plan.places());
  devices_.resize(devices);
  held_.resize(devices);
  sum_.resize(static_cast<std::size_t>(plan.schedule.stages));
  count_.resize(sum_.size());
  for (const LocalEntry& entry : executor.recording().entries())
    held_[place_of(plan, entry)] = true;
}

void PipelineStatistics::add(double step_seconds) {
  ++steps_;
  const pipeline::Recording& recording = executor_->recording();
  for (const Piece& piece : recording.pieces()) {
    const LocalEntry& entry = recording.entries()[piece.entry];
    const pipeline::Action& action = entry.action;
    add_to_device(devices_[place_of(executor_->plan(), entry)], action.kind, piece);
    add_to_stage(sum_[static_cast<std::size_t>(action.stage)], action.kind, piece);
  }
  for (const LocalEntry& entry : recording.entries())
    if (entry.action.kind == ActionKind::Forward)
      count_[static_cast<std::size_t>(entry.action.stage)] += 1.0;
  for (std::size_t d = 0; d < devices_.size(); ++d)
    if (held_[d]) devices_[d].total += step_seconds;
}

PipelineReport PipelineStatistics::report(const comm::World& world) const {
  const pipeline::PipelinePlan& plan = executor_->plan();
  PipelineReport report;
  report.steps = steps_;
  report.devices = devices_;
  world.add(numbers(report.devices));
  std::vector<StageCost> sums = sum_;
  std::vector<double> counts = count_;
  world.add(numbers(sums));
  world.add(counts);
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const double n = std::max(1.0, counts[s]);
    const double updates = n / plan.schedule.micro_batches;
    report.costs.stages.push_back({.forward = sums[s].forward / n,
                                   .backward_input = sums[s].backward_input / n,
                                   .backward_weight = sums[s].backward_weight / n,
                                   .update = sums[s].update / updates});
  }
  double busy = 0.0;
  double total = 0.0;
  for (const DeviceTimes& device : report.devices) {
    busy += device.busy();
    total += device.total;
  }
  report.measured_bubble = total > 0.0 ? 1.0 - busy / total : 0.0;
  // The devices of a process take turns.
  const pipeline::RankMap& map = plan.ranks;
  if (map.most_devices() > 1 && !plan.is_joint()) {
    report.costs.processors = static_cast<double>(map.ranks) / map.replicas;
    report.costs.devices_per_process = map.most_devices();
  }
  const pipeline::TimeLine line = simulate(plan, executor_->links(), report.costs);
  report.simulated_bubble = line.bubble();
  report.simulated_seconds = line.makespan;
  report.bound_seconds = lower_bound_seconds(plan, report.costs);
  const auto devices = static_cast<double>(report.devices.size());
  report.step_seconds = total / devices / static_cast<double>(std::max<std::int64_t>(1, steps_));
  return report;
}

std::string to_text(const PipelineReport& report, const pipeline::PipelinePlan& plan) {
  std::string text = fmt::format(
      "Time by device over {}, in percent of {:.2f} ms each\n"
      "{:>7} {:>6} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7} {:>6}  {}\n",
      counted(report.steps, "update"), 1e3 * report.step_seconds, "replica", "device", "rank",
      "forward", "backward", "update", "reduce", "receive", "send", "images", "ranks", "idle",
      "stages");
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const DeviceTimes& d = report.devices[i];
    const auto place = static_cast<std::int32_t>(i);
    const std::int32_t replica = plan.is_joint() ? 0 : place / plan.ranks.devices;
    const std::int32_t device = plan.is_joint() ? place : place % plan.ranks.devices;
    const int rank = plan.is_joint() ? place : plan.ranks.rank_of(replica, device);
    const auto share = [&](double part) { return d.total > 0.0 ? 100.0 * part / d.total : 0.0; };
    text += fmt::format(
        "{:>7} {:>6} {:>8} {:>8.1f} {:>9.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>9.1f} {:>7.1f} {:>7.1f} "
        "{:>6.1f}  {}\n",
        replica, device, rank, share(d.forward), share(d.backward), share(d.update),
        share(d.reduce), share(d.receive_wait), share(d.send_wait), share(d.load_wait),
        share(d.ranks_wait), share(d.idle()), stages_at(plan, place));
  }
  text += fmt::format(
      "Bubble: {:.1f} % measured, {:.1f} % simulated from the measured costs (step {:.2f} ms, "
      "simulated {:.2f} ms, lower bound of any schedule {:.2f} ms)",
      100.0 * report.measured_bubble, 100.0 * report.simulated_bubble, 1e3 * report.step_seconds,
      1e3 * report.simulated_seconds, 1e3 * report.bound_seconds);
  return text;
}

}  // namespace millrace::training
