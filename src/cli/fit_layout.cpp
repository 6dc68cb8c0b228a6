// SPDX-License-Identifier: Apache-2.0
#include "cli/fit_layout.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "partition/layout.hpp"
#include "train/agreement.hpp"
#include "train/memory.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

using run::LayoutRequest;
using run::Run;
using train::DeviceUse;
using train::MeasureUse;

/// A layout that was measured.
struct Tried {
  Resolution resolution;
  DeviceUse use;
  double seconds = 0.0;  ///< of a step, estimated
  /// Also if the process has grown by the search when the training is measured.
  [[nodiscard]] bool fits() const {
    return use.need + train::kBaseVaries <= resolution.config.device_memory;
  }
};

/// What fits is better than what does not; then what is faster, or what needs less.
bool better(const Tried& a, const Tried& b) {
  if (a.fits() != b.fits()) return a.fits();
  return a.fits() ? a.seconds < partition::kWorthIt * b.seconds : a.use.need < b.use.need;
}

void keep_better(std::optional<Tried>& best, Tried tried) {
  if (!best || better(tried, *best)) best = std::move(tried);
}

class LayoutFitter {
 public:
  LayoutFitter(const MachineFacts& machine, const Resolution& first, const MeasureUse& measure)
      : machine_(machine),
        base_(first.config),
        graph_(train::network_of(first.config)),
        measure_(measure) {}

  /// A layout whose schedule is named, as it was chosen at first. What a device needs besides its
  /// stages depends on them a little, so it is measured again for the stages that were found.
  [[nodiscard]] Tried named(Resolution first) const {
    constexpr int kRounds = 3;
    constexpr std::int64_t kEqual = 100'000;
    const LayoutRequest asked = first.layout.asked;
    std::optional<Tried> best = tried(std::move(first));
    std::int64_t rest = best->use.rest;
    for (int round = 0; round < kRounds; ++round) {
      MachineFacts facts = machine_;
      facts.rest = rest + train::kBaseVaries;
      Tried next = tried(chosen(asked, facts));
      const bool settled = std::abs(next.use.rest - rest) <= kEqual;
      rest = next.use.rest;
      keep_better(best, std::move(next));
      if (settled) break;
    }
    return *std::move(best);
  }

  /// A layout whose schedule is open; `request` are its devices and micro-batches.
  [[nodiscard]] Tried automatic(const LayoutRequest& asked,
                                const pipeline::ScheduleRequest& request) const {
    std::optional<Tried> best;
    std::optional<Tried> one_a_device;
    std::optional<Error> refusal;
    for (const auto& [least, schedule] : promising_first(asked, request)) {
      if (best && best->fits() && least >= partition::kWorthIt * best->seconds) break;
      LayoutRequest own = asked;
      own.schedule = schedule.name;
      if (schedule.chunks > 1) own.chunks = schedule.chunks;
      std::optional<Tried> found;
      try {
        found = named(chosen(own, machine_));
      } catch (const Error& error) {  // not every schedule takes every number of micro-batches
        if (error.kind() != ErrorKind::Config) throw;
        if (!refusal) refusal = error;
        continue;
      }
      if (schedule.chunks == 1) keep_better(one_a_device, *found);
      keep_better(best, *std::move(found));
    }
    if (!best && refusal) throw Error(*refusal);
    if (one_a_device) {
      LayoutRequest own = asked;
      own.schedule = partition::kAutomatic;
      own.splits = one_a_device->resolution.config.splits;
      keep_better(best, named(chosen(own, machine_)));
    }
    MILLRACE_ASSERT(best.has_value());
    return *std::move(best);
  }

 private:
  /// The run with the layout that is chosen for a request.
  [[nodiscard]] Resolution chosen(const LayoutRequest& asked, const MachineFacts& machine) const {
    Resolution resolution;
    resolution.config = base_;
    resolution.config.layout = asked;
    Notices told_already;
    resolution.layout = resolve_layout(machine, resolution.config, told_already);
    return resolution;
  }

  [[nodiscard]] Tried tried(Resolution resolution) const {
    Tried layout{.resolution = std::move(resolution), .use = {}};
    layout.use = measure_(layout.resolution.config);
    layout.seconds = seconds_of(layout.resolution);
    return layout;
  }

  /// The schedules with the seconds that they take without a limit of memory, fastest first.
  [[nodiscard]] std::vector<std::pair<double, pipeline::ScheduleRequest>> promising_first(
      LayoutRequest asked, const pipeline::ScheduleRequest& open) const {
    asked.device_memory.clear();
    if (asked.recompute == run::RecomputeRequest::Auto) asked.recompute.reset();
    const Run config = chosen(asked, machine_).config;
    std::vector<std::pair<double, pipeline::ScheduleRequest>> all;
    for (const pipeline::ScheduleRequest& schedule : partition::schedules_for(graph_, open)) {
      const partition::PlanRequest request = plan_request(config, schedule);
      const auto costs = partition::estimated_costs(graph_, request.program, request.device);
      try {
        all.emplace_back(partition::automatic_plan(graph_, costs, request, 0).seconds, schedule);
      } catch (const Error& error) {  // not every schedule takes every number of micro-batches
        if (error.kind() != ErrorKind::Config) throw;
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return all;
  }

  [[nodiscard]] double seconds_of(const Resolution& resolution) const {
    const pipeline::PipelinePlan& pipeline = resolution.config.pipeline;
    const partition::PlanRequest request =
        plan_request(resolution.config, resolution.layout.request);
    return partition::make_plan(graph_,
                                partition::estimated_costs(graph_, request.program, request.device),
                                pipeline.ranges, request, without_communication(pipeline.schedule))
        .seconds;
  }

  const MachineFacts& machine_;
  const Run base_;
  const models::Graph graph_;
  const MeasureUse& measure_;
};

/// Takes the layout of `from` and what depends on it.
void take_layout(Run& config, Run from) {
  config.pipeline = std::move(from.pipeline);
  config.splits = std::move(from.splits);
  config.layout = std::move(from.layout);
  config.recompute = from.recompute;
  config.chosen_segments = std::move(from.chosen_segments);
}

}  // namespace

Resolution fit_layout(const MachineFacts& machine, Resolution first, const MeasureUse& measure) {
  const bool open = !first.layout.notices.empty();
  if (first.config.device_memory == 0 || !open) return first;
  const LayoutFitter fitter(machine, first, measure);
  const Layout layout = first.layout;
  const run::LayoutOrigin origin = first.config.layout_origin;
  Resolution chosen = layout.schedule_chosen
                          ? fitter.automatic(layout.asked, layout.request).resolution
                          : fitter.named(std::move(first)).resolution;
  if (!layout.schedule_chosen) return chosen;
  chosen.config.layout_origin = origin;
  const LayoutRequest& asked = chosen.layout.asked;
  Notices& notices = chosen.layout.notices;
  if (opens_cuts(asked)) notices.erase(notices.begin());
  notices.insert(notices.begin(), schedule_notice(*asked.schedule, chosen.config.splits));
  chosen.layout.schedule_chosen = true;
  return chosen;
}

void fit_layout(PreparedRun& run, const comm::World& world) {
  const train::TrainInputs inputs{.train = run.data.train,
                                  .validation = run.data.validation,
                                  .command_line = {},
                                  .notices = {}};
  std::optional<std::int64_t> base;  // measured once: it varies a little from time to time
  const MeasureUse measure = [&](const Run& config) {
    Run placed = config;
    placed.run_directory = run.config.run_directory;
    placed.trace = run.config.trace;
    if (must_launch(config, world)) {
      const auto processes = forecast_processes(placed, inputs, world, base);
      for (const partition::ProcessMemory& process : processes)
        base = std::max(base.value_or(0), process.base);
      return train::device_use(processes);
    }
    device::release_unused();
    const train::Session session(placed, train::Use::Training, world, world.rank());
    base = base.value_or(train::resident_bytes());
    return most_of(train::device_use(forecast_memory(session, placed, inputs, *base)), world);
  };
  Resolution first;
  first.config = run.config;
  first.layout = run.layout;
  Resolution fitted = fit_layout(run.machine, std::move(first), measure);
  const bool changed = to_toml(fitted.config) != to_toml(run.config);
  take_layout(run.config, std::move(fitted.config));
  run.layout = std::move(fitted.layout);
  if (changed && run.is_new) train::Together(world).lead([&] { record_options(run); });
}

}  // namespace millrace::cli
