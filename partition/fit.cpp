// SPDX-License-Identifier: Apache-2.0
//
// Choosing a layout for what a device needs by measurement, where that is known.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "partition/search.hpp"

namespace millrace::partition {
namespace {

using run::LayoutRequest;

/// `cost`: seconds of a step, estimated. It fits also if the process has grown by the search when
/// it trains.
using Measured = Sized<Choice>;

class Fitter {
 public:
  Fitter(const Graph& graph, const Run& base, const LayoutFacts& facts, const Sizer& sizer)
      : graph_(graph), base_(base), facts_(facts), sizer_(sizer) {}

  /// A layout whose schedule is named, as it was chosen at first. What a device needs besides its
  /// stages depends on them a little, so it is measured again for the stages that were found.
  [[nodiscard]] Measured named(Choice first) const {
    constexpr int kRounds = 3;
    constexpr std::int64_t kEqual = 100'000;
    const LayoutRequest asked = first.run.asked_layout;
    std::optional<Measured> best = measured(std::move(first));
    std::int64_t rest = best->use.rest;
    for (int round = 0; round < kRounds; ++round) {
      Sizer known = sizer_;
      known.rest = [&](const Run&) { return rest + sizer_.varies; };
      Measured next = measured(chosen(asked, known));
      const bool settled = std::abs(next.use.rest - rest) <= kEqual;
      rest = next.use.rest;
      keep_better(best, std::move(next));
      if (settled) break;
    }
    return *std::move(best);
  }

  /// A layout whose schedule is open: the fastest of all that fit, each with the cuts and the
  /// segments that it would have by itself. `open` are its devices and micro-batches.
  [[nodiscard]] Measured automatic(const LayoutRequest& asked,
                                   const pipeline::ScheduleRequest& open) const {
    LayoutRequest own = asked;
    const auto find = [&](const ScheduleCandidate& candidate) -> std::optional<Measured> {
      own.schedule = candidate.schedule.name;
      own.chunks = asked.chunks;
      if (candidate.schedule.chunks > 1) own.chunks = candidate.schedule.chunks;
      return named(chosen(own, sizer_));
    };
    const auto list = [&](const Measured& on) {
      own = asked;
      own.schedule = kAutomatic;
      own.splits = on.layout.run.splits;
      return named(chosen(own, sizer_));
    };
    return best_schedule<Choice>(promising_first(asked, open), find, list).value();
  }

 private:
  [[nodiscard]] Choice chosen(const LayoutRequest& asked, const Sizer& sizer) const {
    Run run = base_;
    run.layout = asked;
    return choose_once(graph_, std::move(run), facts_, sizer);
  }

  [[nodiscard]] Measured measured(Choice choice) const {
    const DeviceUse use = sizer_.measure(choice.run);
    const pipeline::PipelinePlan& pipeline = choice.run.pipeline;
    const PlanRequest request = plan_request(choice.run, choice.layout.request);
    const double seconds = make_plan(graph_, costs_of(graph_, request), pipeline.ranges, request,
                                     without_communication(pipeline.schedule))
                               .seconds;
    const bool fits = use.need + sizer_.varies <= choice.run.device_memory;
    return {.layout = std::move(choice), .cost = seconds, .use = use, .fits = fits};
  }

  /// The schedules with the seconds that they take without a limit of memory, fastest first.
  [[nodiscard]] std::vector<ScheduleCandidate> promising_first(
      LayoutRequest asked, const pipeline::ScheduleRequest& open) const {
    asked.device_memory.clear();
    if (asked.recompute == run::RecomputeRequest::Auto) asked.recompute.reset();
    const Run unlimited = chosen(asked, sizer_).run;
    std::vector<ScheduleCandidate> possible;
    for (ScheduleCandidate& candidate : schedules_for(graph_, open)) {
      const PlanRequest request = plan_request(unlimited, candidate.schedule);
      try {
        candidate.least = automatic_plan(graph_, costs_of(graph_, request), request, 0).seconds;
        possible.push_back(std::move(candidate));
      } catch (const Error& error) {  // not every schedule takes every number of micro-batches
        if (error.kind() != ErrorKind::Config) throw;
      }
    }
    std::ranges::stable_sort(possible, {}, &ScheduleCandidate::least);
    return possible;
  }

  const Graph& graph_;
  const Run& base_;
  const LayoutFacts& facts_;
  const Sizer& sizer_;
};

/// The layout that is faster or, if none of them fits, smaller, after measurements.
Choice fit(const Graph& graph, Choice first, const LayoutFacts& facts, const Sizer& sizer) {
  const Run base = first.run;
  const LayoutRequest asked = base.asked_layout;
  const Fitter fitter(graph, base, facts, sizer);
  if (!opens_both(asked, first.layout.request.devices))
    return fitter.named(std::move(first)).layout;
  Choice best = fitter.automatic(asked, first.layout.request).layout;
  Notices& notices = best.layout.notices;
  if (opens_cuts(best.run.asked_layout)) notices.erase(notices.begin());
  notices.insert(notices.begin(),
                 schedule_notice(*best.run.asked_layout.schedule, best.run.splits));
  best.run.asked_layout = asked;
  best.notices = std::move(first.notices);
  return best;
}

}  // namespace

Choice choose(const Graph& graph, Run run, const LayoutFacts& facts, const Sizer& sizer) {
  Choice first = choose_once(graph, std::move(run), facts, sizer);
  if (!sizer.measure || first.run.device_memory == 0 || first.layout.notices.empty()) return first;
  return fit(graph, std::move(first), facts, sizer);
}

}  // namespace millrace::partition
