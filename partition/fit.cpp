// SPDX-License-Identifier: Apache-2.0
//
// Layouts that must stay within the memory of a device, measured: the best that fits where a run
// leaves its layout open, and the nearest one that does where what it names does not fit.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/choose_parts.hpp"
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::partition {
namespace {

using run::LayoutRequest;

/// A layout that was measured.
struct Measured {
  Choice choice;
  DeviceUse use;
  double seconds = 0.0;  ///< of a step, estimated
  bool fits = false;     ///< also if the process has grown by the search when it trains
};

/// What fits is better than what does not; then what is faster, or what needs less.
bool better(const Measured& a, const Measured& b) {
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.seconds < kWorthIt * b.seconds : a.use.need < b.use.need;
}

void keep_better(std::optional<Measured>& best, Measured other) {
  if (!best || better(other, *best)) best = std::move(other);
}

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
  /// segments that it would have by itself. `request` are its devices and micro-batches.
  [[nodiscard]] Measured automatic(const LayoutRequest& asked,
                                   const pipeline::ScheduleRequest& request) const {
    std::optional<Measured> best;
    std::optional<Measured> one_a_device;
    std::optional<Error> refusal;
    for (const auto& [least, schedule] : promising_first(asked, request)) {
      if (best && best->fits && least >= kWorthIt * best->seconds) break;
      LayoutRequest own = asked;
      own.schedule = schedule.name;
      if (schedule.chunks > 1) own.chunks = schedule.chunks;
      std::optional<Measured> found;
      try {
        found = named(chosen(own, sizer_));
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
      own.schedule = kAutomatic;
      own.splits = one_a_device->choice.run.splits;
      keep_better(best, named(chosen(own, sizer_)));
    }
    MILLRACE_ASSERT(best.has_value());
    return *std::move(best);
  }

 private:
  [[nodiscard]] Choice chosen(const LayoutRequest& asked, const Sizer& sizer) const {
    Run run = base_;
    run.layout = asked;
    return choose_once(graph_, std::move(run), facts_, sizer);
  }

  [[nodiscard]] Measured measured(Choice choice) const {
    const DeviceUse use = sizer_.measure(choice.run);
    const bool fits = use.need + sizer_.varies <= choice.run.device_memory;
    const pipeline::PipelinePlan& pipeline = choice.run.pipeline;
    const PlanRequest request = plan_request(choice.run, choice.layout.request);
    const double seconds = make_plan(graph_, costs_of(graph_, request), pipeline.ranges, request,
                                     without_communication(pipeline.schedule))
                               .seconds;
    return {.choice = std::move(choice), .use = use, .seconds = seconds, .fits = fits};
  }

  /// The schedules with the seconds that they take without a limit of memory, fastest first.
  [[nodiscard]] std::vector<std::pair<double, pipeline::ScheduleRequest>> promising_first(
      LayoutRequest asked, const pipeline::ScheduleRequest& open) const {
    asked.device_memory.clear();
    if (asked.recompute == run::RecomputeRequest::Auto) asked.recompute.reset();
    const Run unlimited = chosen(asked, sizer_).run;
    std::vector<std::pair<double, pipeline::ScheduleRequest>> all;
    for (const pipeline::ScheduleRequest& schedule : schedules_for(graph_, open)) {
      const PlanRequest request = plan_request(unlimited, schedule);
      try {
        all.emplace_back(automatic_plan(graph_, costs_of(graph_, request), request, 0).seconds,
                         schedule);
      } catch (const Error& error) {  // not every schedule takes every number of micro-batches
        if (error.kind() != ErrorKind::Config) throw;
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return all;
  }

  const Graph& graph_;
  const Run& base_;
  const LayoutFacts& facts_;
  const Sizer& sizer_;
};

// ---- the nearest layout that fits

/// A run near the one that was asked for, and what is different in it.
struct Change {
  Run run;
  bool schedule = false;
  bool cuts = false;
  bool segments = false;
  bool batch = false;
  bool validation = false;  ///< smaller batches of it
  [[nodiscard]] bool any() const { return schedule || cuts || segments || batch || validation; }
};

/// The fields that place the stages.
std::vector<std::string> placing(const LayoutRequest& asked) {
  std::vector<std::string> fields;
  if (!asked.plan.empty()) fields.emplace_back("`plan`");
  if (!asked.device_of.empty()) fields.emplace_back("`device-mapping`");
  if (asked.chunks) fields.emplace_back("`chunks`");
  if (!asked.schedule_file.empty()) fields.emplace_back("`pipeline-schedule-file`");
  return fields;
}

/// Whether the fields that place the stages have to go.
bool moves_stages(const Change& change) {
  const LayoutRequest& asked = change.run.asked_layout;
  return (change.schedule && !placing(asked).empty()) || (change.cuts && !asked.plan.empty());
}

/// The fields that make a schedule and cuts: what is different, what a run would choose anew, and
/// what only those said that have to go.
std::vector<std::string> layout_fields(const Change& change) {
  const Run& run = change.run;
  const pipeline::Schedule& schedule = run.pipeline.schedule;
  std::vector<std::string> fields;
  if (schedule.stages < 2) return fields;
  const LayoutRequest& asked = run.asked_layout;
  const bool moved = moves_stages(change);
  if (moved) fields.push_back(fmt::format("`shards` {}", schedule.devices()));
  if (change.schedule || moved || opens_both(asked, schedule.devices())) {
    fields.push_back(fmt::format("`pipeline-schedule` {}", schedule.name));
    if (schedule.stages > 2 * schedule.devices())
      fields.push_back(fmt::format("`chunks` {}", schedule.stages / schedule.devices()));
  }
  if (change.cuts || moved || (run.splits != asked.splits && asked.plan.empty()))
    fields.push_back(fmt::format("`pipeline-splits` '{}'", join(run.splits, " ")));
  return fields;
}

/// The fields that lead to a change, and those that they replace.
std::string words_of(const Change& change) {
  std::vector<std::string> fields = layout_fields(change);
  std::vector<std::string> replaced;
  if (moves_stages(change)) replaced = placing(change.run.asked_layout);
  if (change.segments) {
    fields.emplace_back("`recompute` segments");
    if (!change.run.recompute_layers.empty()) replaced.emplace_back("`recompute-layers`");
  }
  if (change.batch) fields.push_back(fmt::format("`batch-size` {}", change.run.batch_size));
  if (change.validation)
    fields.push_back(fmt::format("`valid-batch-size` {}", change.run.validation_batch_size));
  const std::string words = join(fields, " ");
  return replaced.empty() ? words : fmt::format("{} instead of {}", words, join(replaced, ", "));
}

Change with_batch(Change change, std::int64_t batch) {
  Run& run = change.run;
  if (run.validation_batch_size == run.batch_size) run.validation_batch_size = batch;
  run.batch_size = batch;
  change.batch = true;
  return change;
}

Change repeating(Change change) {
  change.run.recompute = Recompute::Stage;
  change.run.chosen_segments.clear();
  change.segments = true;
  return change;
}

/// None if it validates by no more images than it trains on.
std::optional<Change> with_small_validation(Change change) {
  Run& run = change.run;
  if (run.validation == run::ValidationMode::None || run.validation_batch_size <= run.batch_size)
    return {};
  run.validation_batch_size = run.batch_size;
  change.validation = true;
  return change;
}

class NearestFit {
 public:
  NearestFit(const Graph& graph, const Run& run, const Sizer& sizer)
      : graph_(graph), sizer_(sizer), limit_(run.device_memory), asked_{run} {
    const bool automatic = !run.chosen_segments.empty();
    if (automatic) asked_ = repeating(asked_);  // a run would choose other segments
    repeats_ = run.recompute == Recompute::Stage;
  }

  [[nodiscard]] std::string advice() const {
    if (const std::optional<Change> same = with_small_validation(asked_))
      if (std::string text = fit(*same); !text.empty()) return text;  // it changes no weight
    const std::optional<Change> flowing = with_schedule(asked_, "1F1B");
    const std::optional<Change> waiting = with_schedule(asked_, "Sequential");
    for (const std::optional<Change>& change : {std::optional(asked_), flowing, repeated(asked_),
                                                repeated(flowing), waiting, repeated(waiting)})
      if (std::string text = change ? with_any_cuts(*change) : ""; !text.empty()) return text;
    const Change one_by_one = waiting.value_or(asked_);
    const Change compact = repeated(one_by_one).value_or(one_by_one);
    const Change least = with_small_validation(compact).value_or(compact);
    for (const Change& change : {asked_, compact, least})
      if (std::string text = with_a_batch(change); !text.empty()) return text;
    return nothing_fits(least);
  }

 private:
  /// None if it repeats them already.
  [[nodiscard]] std::optional<Change> repeated(const std::optional<Change>& change) const {
    if (!change || repeats_) return {};
    return repeating(*change);
  }

  /// With a schedule that holds fewer micro-batches, and a stage on each device. None if the run
  /// has it, has only one stage, or lists its actions in a file.
  [[nodiscard]] std::optional<Change> with_schedule(Change change, std::string_view name) const {
    const pipeline::Schedule& schedule = change.run.pipeline.schedule;
    const bool generated = std::ranges::any_of(
        pipeline::schedule_rules(), [&](const auto& rule) { return rule.name == schedule.name; });
    if (schedule.stages < 2 || (!generated && to_lower(schedule.name) != kAutomatic)) return {};
    const bool one_a_device = schedule.stages == schedule.devices();
    const bool holds_as_little = schedule.name == "Interleaved" || schedule.name == "Sequential";
    if (one_a_device && (schedule.name == name || (holds_as_little && name == "1F1B"))) return {};
    change.schedule = true;
    change.cuts = !one_a_device;
    return arranged(std::move(change), std::string(name));
  }

  /// With other cuts and the same schedule. None where each device has several stages, and for
  /// actions that were ordered for the cuts.
  [[nodiscard]] std::optional<Change> with_other_cuts(Change change) const {
    const pipeline::Schedule& schedule = change.run.pipeline.schedule;
    if (schedule.stages < 2 || schedule.stages != schedule.devices()) return {};
    if (to_lower(schedule.name) == kAutomatic) return {};
    const std::vector<std::string> before = change.run.splits;
    const std::string name = schedule.name;  // `schedule` is a part of what moves
    change.cuts = true;
    std::optional<Change> other = arranged(std::move(change), name);
    return other && other->run.splits != before ? other : std::nullopt;
  }

  /// With this schedule and, if its cuts change, those of the smallest largest device. None if
  /// there are too few.
  [[nodiscard]] std::optional<Change> arranged(Change change, std::string schedule) const {
    Run& run = change.run;
    const LayoutRequest asked = run.asked_layout;
    const pipeline::ScheduleRequest request{.name = schedule,
                                            .devices = run.pipeline.schedule.devices(),
                                            .micro_batches = run.pipeline.schedule.micro_batches,
                                            .device_of = {}};
    if (change.cuts && std::ssize(filtered_cuts(graph_, {})) < request.devices - 1) return {};
    const Recompute recompute = run.recompute;
    if (change.cuts)
      run.splits = choose_splits(graph_, sized_request(run, request, sizer_),
                                 {.aim = SplitRequest::For::Memory});
    run.layout = {};
    run.layout.shards = request.devices;
    run.layout.splits = run.splits;
    run.layout.schedule = std::move(schedule);
    run.layout.device_memory = asked.device_memory;
    run.layout.pipelined = true;
    run = rearrange(graph_, std::move(run), {}, sizer_).run;
    run.recompute = recompute;
    run.asked_layout = asked;
    return change;
  }

  [[nodiscard]] std::string fit(const Change& change) const {
    if (!change.any()) return {};
    const std::int64_t bytes = sizer_.measure(change.run).need;
    if (!fits(bytes)) return {};
    return fmt::format("{} fits with {}", words_of(change), human_bytes(bytes));
  }

  [[nodiscard]] std::string with_any_cuts(const Change& change) const {
    if (std::string text = fit(change); !text.empty()) return text;
    const std::optional<Change> cuts = with_other_cuts(change);
    return cuts ? fit(*cuts) : "";
  }

  /// The largest batch that fits; "" if not even one image does.
  [[nodiscard]] std::string with_a_batch(const Change& change) const {
    const auto need = [&](std::int64_t batch) {
      return sizer_.measure(with_batch(change, batch).run).need;
    };
    if (!fits(need(1))) return {};
    std::int64_t largest = 1;
    std::int64_t too_large = change.run.batch_size;
    while (largest + 1 < too_large) {
      const std::int64_t middle = (largest + too_large) / 2;
      (fits(need(middle)) ? largest : too_large) = middle;
    }
    return fit(with_batch(change, largest));
  }

  [[nodiscard]] std::string nothing_fits(const Change& least) const {
    const Change one = with_batch(least, 1);
    const DeviceUse use = sizer_.measure(one.run);
    return fmt::format(
        "even {} needs {}, of which {} are the program, its libraries and the images that it "
        "keeps, for each device: raise `device-memory` to {}MB{}",
        words_of(one), human_bytes(use.need), human_bytes(use.rest),
        (use.need + sizer_.varies) / 1'000'000 + 1,
        use.rest < limit_ / 2 ? ", or try more `shards`" : "");
  }

  /// What is proposed fits for certain.
  [[nodiscard]] bool fits(std::int64_t bytes) const { return bytes + sizer_.varies <= limit_; }

  const Graph& graph_;
  const Sizer& sizer_;
  std::int64_t limit_;
  Change asked_;
  bool repeats_ = false;  ///< all segments already
};

}  // namespace

Choice fit(const Graph& graph, Choice first, const LayoutFacts& facts, const Sizer& sizer) {
  const Run base = first.run;
  const LayoutRequest asked = base.asked_layout;
  const Fitter fitter(graph, base, facts, sizer);
  if (!first.layout.schedule_chosen) return fitter.named(std::move(first)).choice;
  Choice best = fitter.automatic(asked, first.layout.request).choice;
  Notices& notices = best.layout.notices;
  if (opens_cuts(best.run.asked_layout)) notices.erase(notices.begin());
  notices.insert(notices.begin(),
                 schedule_notice(*best.run.asked_layout.schedule, best.run.splits));
  best.layout.schedule_chosen = true;
  best.run.asked_layout = asked;
  best.notices = std::move(first.notices);
  return best;
}

std::string nearest_fit(const Graph& graph, const Run& run, const Sizer& sizer) {
  return NearestFit(graph, run, sizer).advice();
}

}  // namespace millrace::partition
