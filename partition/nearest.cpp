// SPDX-License-Identifier: Apache-2.0
//
// The nearest layout that fits, where the one that a run names does not.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/text.hpp"
#include "partition/search.hpp"
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::partition {
namespace {

using run::LayoutRequest;

/// A difference from what was asked for: what is tried, or what was made of it.
struct Change {
  double least = 0.0;              ///< its penalty
  std::string_view schedule = {};  ///< another one, with a stage on each device
  bool cuts = false;
  bool segments = false;    ///< repeats all forward passes
  bool validation = false;  ///< by no more images than are trained on at once
  bool batch = false;       ///< the largest that fits, with as much of the rest as can be made
};

/// What is tried, in the order of its penalty. What needs less memory costs more time. Other
/// batches come last: only they change the result. A run that chooses what it repeats may repeat
/// more without any other change.
constexpr Change kChanges[] = {
    {.least = 1, .validation = true},
    {.least = 2},
    {.least = 3, .cuts = true},
    {.least = 4, .schedule = "1F1B"},
    {.least = 5, .schedule = "1F1B", .cuts = true},
    {.least = 6, .segments = true},
    {.least = 7, .cuts = true, .segments = true},
    {.least = 8, .schedule = "1F1B", .segments = true},
    {.least = 9, .schedule = "1F1B", .cuts = true, .segments = true},
    {.least = 10, .schedule = "Sequential"},
    {.least = 11, .schedule = "Sequential", .cuts = true},
    {.least = 12, .schedule = "Sequential", .segments = true},
    {.least = 13, .schedule = "Sequential", .cuts = true, .segments = true},
    {.least = 14, .segments = true, .validation = true},
    {.least = 15, .cuts = true, .segments = true, .validation = true},
    {.least = 16, .schedule = "Sequential", .segments = true, .validation = true},
    {.least = 17, .batch = true},
    {.least = 18, .schedule = "Sequential", .segments = true, .batch = true},
    {.least = 19, .schedule = "Sequential", .segments = true, .validation = true, .batch = true},
};

/// A run near the one that was asked for, and what is different in it.
struct Near {
  Run run;
  Change change;
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

/// The fields that lead to a run, and those that they replace: what is different, what a run would
/// choose anew, and what only those said that have to go.
std::string words_of(const Near& near) {
  const auto& [run, change] = near;
  const LayoutRequest& asked = run.asked_layout;
  const pipeline::Schedule& schedule = run.pipeline.schedule;
  const bool other_schedule = !change.schedule.empty();
  std::vector<std::string> replaced = placing(asked);
  const bool moved = (other_schedule && !replaced.empty()) || (change.cuts && !asked.plan.empty());
  if (!moved) replaced.clear();
  std::vector<std::string> fields;
  if (schedule.stages > 1) {
    if (moved) fields.push_back(fmt::format("`shards` {}", schedule.devices()));
    if (other_schedule || moved || opens_both(asked, schedule.devices())) {
      fields.push_back(fmt::format("`pipeline-schedule` {}", schedule.name));
      if (schedule.stages > 2 * schedule.devices())
        fields.push_back(fmt::format("`chunks` {}", schedule.stages / schedule.devices()));
    }
    if (change.cuts || moved || (run.splits != asked.splits && asked.plan.empty()))
      fields.push_back(fmt::format("`pipeline-splits` '{}'", join(run.splits, " ")));
  }
  if (change.segments) {
    fields.emplace_back("`recompute` segments");
    if (!run.recompute_layers.empty()) replaced.emplace_back("`recompute-layers`");
  }
  if (change.batch) fields.push_back(fmt::format("`batch-size` {}", run.batch_size));
  if (change.validation)
    fields.push_back(fmt::format("`valid-batch-size` {}", run.validation_batch_size));
  const std::string words = join(fields, " ");
  return replaced.empty() ? words : fmt::format("{} instead of {}", words, join(replaced, ", "));
}

Near with_batch(Near near, std::int64_t batch) {
  Run& run = near.run;
  if (run.validation_batch_size == run.batch_size) run.validation_batch_size = batch;
  run.batch_size = batch;
  near.change.batch = true;
  return near;
}

/// None if it validates by no more images than it trains on.
std::optional<Near> with_small_validation(Near near) {
  Run& run = near.run;
  if (run.validation == run::ValidationMode::None || run.validation_batch_size <= run.batch_size)
    return {};
  run.validation_batch_size = run.batch_size;
  near.change.validation = true;
  return near;
}

/// None if it repeats all passes already.
std::optional<Near> repeating(Near near) {
  if (near.run.recompute == Recompute::Stage && near.run.chosen_segments.empty()) return {};
  near.run.recompute = Recompute::Stage;
  near.run.chosen_segments.clear();
  near.change.segments = true;
  return near;
}

class NearestFit {
 public:
  NearestFit(const Graph& graph, const Run& run, const Sizer& sizer, Batch batch)
      : graph_(graph), sizer_(sizer), batch_(batch), asked_{run, {}} {
    if (!run.chosen_segments.empty()) asked_ = *repeating(asked_);  // a run would choose others
    for (const char* name : {"1F1B", "Sequential"}) scheduled_[name] = with_schedule(asked_, name);
  }

  [[nodiscard]] std::string advice() const {
    const auto find = [&](const Change& change) -> std::optional<Sized<Near>> {
      if (change.batch && batch_ == Batch::Fixed) return std::nullopt;
      std::optional<Near> near = changed(change);
      if (near && change.batch) near = with_fitting_batch(*near);
      return near ? std::optional(sized(*std::move(near), change.least)) : std::nullopt;
    };
    const auto best = best_of<Near>(kChanges, find);
    if (best && best->fits)
      return fmt::format("{} fits with {}", words_of(best->layout), human_bytes(best->use.need));
    return nothing_fits(*changed(*std::rbegin(kChanges)));
  }

 private:
  /// The run with a change, before its batch. None if that is as asked or cannot be made.
  [[nodiscard]] std::optional<Near> changed(const Change& change) const {
    Near near = asked_;
    const auto take = [&](std::optional<Near> next) {
      const bool made = next.has_value();
      if (made) near = *std::move(next);
      return made || change.batch;
    };
    if (!change.schedule.empty() && !take(scheduled_.find(change.schedule)->second)) return {};
    if (change.segments && !take(repeating(near))) return {};
    if (change.cuts && !take(with_other_cuts(near))) return {};
    if (change.validation && !take(with_small_validation(near))) return {};
    const Change& made = near.change;
    const bool any = !made.schedule.empty() || made.segments || made.cuts || made.validation;
    return any || change.batch ? std::optional(std::move(near)) : std::nullopt;
  }

  /// Whether its actions are those of a schedule with a name.
  [[nodiscard]] static bool is_generated(const pipeline::Schedule& schedule) {
    return std::ranges::any_of(pipeline::schedule_rules(),
                               [&](const auto& rule) { return rule.name == schedule.name; });
  }

  /// With a schedule that holds fewer micro-batches, and a stage on each device. None if the run
  /// has it, has only one stage, or lists its actions in a file.
  [[nodiscard]] std::optional<Near> with_schedule(Near near, std::string_view name) const {
    const pipeline::Schedule& schedule = near.run.pipeline.schedule;
    if (schedule.stages < 2 || (!is_generated(schedule) && to_lower(schedule.name) != kAutomatic))
      return {};
    const bool one_a_device = schedule.stages == schedule.devices();
    const bool holds_as_little = schedule.name == "Interleaved" || schedule.name == "Sequential";
    if (one_a_device && (schedule.name == name || (holds_as_little && name == "1F1B"))) return {};
    near.change.schedule = name;
    near.change.cuts = !one_a_device;
    return arranged(std::move(near), std::string(name));
  }

  /// With other cuts and the same schedule. None where each device has several stages, and for
  /// actions of a file or that were ordered for the cuts.
  [[nodiscard]] std::optional<Near> with_other_cuts(Near near) const {
    const pipeline::Schedule& schedule = near.run.pipeline.schedule;
    if (schedule.stages < 2 || schedule.stages != schedule.devices() || !is_generated(schedule))
      return {};
    const std::vector<std::string> before = near.run.splits;
    const std::string name = schedule.name;  // `schedule` is a part of what moves
    near.change.cuts = true;
    std::optional<Near> other = arranged(std::move(near), name);
    return other && other->run.splits != before ? other : std::nullopt;
  }

  /// With this schedule and, if its cuts change, those of the smallest largest device. None if
  /// there are too few.
  [[nodiscard]] std::optional<Near> arranged(Near near, std::string schedule) const {
    Run& run = near.run;
    const LayoutRequest asked = run.asked_layout;
    const pipeline::ScheduleRequest request{.name = schedule,
                                            .devices = run.pipeline.schedule.devices(),
                                            .micro_batches = run.pipeline.schedule.micro_batches,
                                            .device_of = {}};
    if (near.change.cuts && std::ssize(filtered_cuts(graph_, {})) < request.devices - 1) return {};
    const Recompute recompute = run.recompute;
    if (near.change.cuts) {
      PlanRequest sized = plan_request(run, request);
      sized.sizer = sizer_.search(run);
      run.splits = splits_by_memory(graph_, sized);
    }
    run.layout = {};
    run.layout.shards = request.devices;
    run.layout.splits = run.splits;
    run.layout.schedule = std::move(schedule);
    run.layout.device_memory = asked.device_memory;
    run.layout.pipelined = true;
    run = rearrange(graph_, std::move(run), {}, sizer_).run;
    run.recompute = recompute;
    run.asked_layout = asked;
    return near;
  }

  [[nodiscard]] Sized<Near> sized(Near near, double penalty) const {
    const DeviceUse use = sizer_.measure(near.run);
    return {.layout = std::move(near), .cost = penalty, .use = use, .fits = fits(use)};
  }

  /// With the largest batch that fits; one image if not even that does.
  [[nodiscard]] Near with_fitting_batch(const Near& near) const {
    const auto fits_with = [&](std::int64_t batch) {
      return fits(sizer_.measure(with_batch(near, batch).run));
    };
    std::int64_t largest = 1;
    std::int64_t too_large = fits_with(1) ? near.run.batch_size : 1;
    while (largest + 1 < too_large) {
      const std::int64_t middle = (largest + too_large) / 2;
      (fits_with(middle) ? largest : too_large) = middle;
    }
    return with_batch(near, largest);
  }

  [[nodiscard]] std::string nothing_fits(const Near& least) const {
    const Near one = batch_ == Batch::Fixed ? least : with_batch(least, 1);
    const DeviceUse use = sizer_.measure(one.run);
    const std::string words = words_of(one);
    return fmt::format(
        "even {} needs {}, of which {} are the program, its libraries and the images that it "
        "keeps, for each device: raise `device-memory` to {}MB{}",
        words.empty() ? "this layout" : words, human_bytes(use.need), human_bytes(use.rest),
        (use.need + sizer_.varies) / 1'000'000 + 1,
        use.rest < one.run.device_memory / 2 ? ", or try more `shards`" : "");
  }

  /// What is proposed fits for certain.
  [[nodiscard]] bool fits(const DeviceUse& use) const {
    return use.need + sizer_.varies <= asked_.run.device_memory;
  }

  const Graph& graph_;
  const Sizer& sizer_;
  Batch batch_;
  Near asked_;
  std::map<std::string_view, std::optional<Near>> scheduled_;  ///< by the schedule of a change
};

}  // namespace

std::string nearest_fit(const Graph& graph, const Run& run, const Sizer& sizer, Batch batch) {
  return NearestFit(graph, run, sizer, batch).advice();
}

}  // namespace millrace::partition
