// SPDX-License-Identifier: Apache-2.0
//
// Whether a run fits into `device-memory`, and which layout near it does.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/balance.hpp"
#include "partition/layout.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "train/memory.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

/// A configuration near the one that was asked for, and what is different in it.
struct Change {
  run::Run config;
  bool schedule = false;
  bool cuts = false;
  bool segments = false;
  bool batch = false;

  [[nodiscard]] bool any() const { return schedule || cuts || segments || batch; }
};

/// Whether the options that place the stages have to go.
bool moves_stages(const Change& change) {
  const std::vector<std::string>& placed_by = change.config.layout_origin.placed_by;
  if (change.schedule) return !placed_by.empty();
  return change.cuts && std::ranges::find(placed_by, "`plan`") != placed_by.end();
}

/// The options that make a schedule and cuts: what is different, what a run would choose anew, and
/// what only the options said that have to go.
std::vector<std::string> layout_options(const Change& change) {
  const run::Run& config = change.config;
  const pipeline::Schedule& schedule = config.pipeline.schedule;
  std::vector<std::string> options;
  if (schedule.stages < 2) return options;
  const run::LayoutOrigin& origin = config.layout_origin;
  const bool moved = moves_stages(change);
  if (moved) options.push_back(fmt::format("`shards` {}", schedule.devices()));
  if (change.schedule || moved || origin.schedule_chosen) {
    options.push_back(fmt::format("`pipeline-schedule` {}", schedule.name));
    if (schedule.stages > 2 * schedule.devices())
      options.push_back(fmt::format("`chunks` {}", schedule.stages / schedule.devices()));
  }
  if (change.cuts || moved || origin.cuts_chosen)
    options.push_back(fmt::format("`pipeline-splits` '{}'", join(config.splits, " ")));
  return options;
}

/// The options that lead to a change, and those that they replace.
std::string words_of(const Change& change) {
  std::vector<std::string> options = layout_options(change);
  std::vector<std::string> replaced;
  if (moves_stages(change)) replaced = change.config.layout_origin.placed_by;
  if (change.segments) {
    options.emplace_back("`recompute` segments");
    if (!change.config.recompute_layers.empty()) replaced.emplace_back("`recompute-layers`");
  }
  if (change.batch) options.push_back(fmt::format("`batch-size` {}", change.config.batch_size));
  const std::string words = join(options, " ");
  return replaced.empty() ? words : fmt::format("{} instead of {}", words, join(replaced, ", "));
}

Change with_batch(Change change, std::int64_t batch) {
  run::Run& config = change.config;
  if (config.validation_batch_size == config.batch_size) config.validation_batch_size = batch;
  config.batch_size = batch;
  change.batch = true;
  return change;
}

Change repeating(Change change) {
  change.config.recompute = run::Recompute::Stage;
  change.config.chosen_segments.clear();
  change.segments = true;
  return change;
}

/// The cuts between layers with the smallest largest device, for a stage on each device.
std::vector<pipeline::OpRange> smallest_cuts(const run::Run& config, const models::Graph& graph,
                                             const std::vector<pipeline::Slots>& slots,
                                             pipeline::Backward backward) {
  pipeline::ProgramOptions program = training_program(config);
  program.backward = backward;
  const auto bytes = std::make_shared<partition::StageBytes>(
      graph, program, partition::UpdateMemory(config.optimiser.kind, config.precision),
      search_sizer(graph, config));
  return partition::shard_by_memory(graph, config.pipeline.schedule.devices(), {},
                                    partition::exact_memory(bytes, slots));
}

bool has_cuts_for(const models::Graph& graph, std::int32_t stages) {
  return std::ssize(partition::filtered_cuts(graph, {})) >= stages - 1;
}

/// Other cuts of the same schedule. None where each device has several stages, and for actions that
/// were ordered for the cuts.
std::optional<Change> with_other_cuts(const Change& change, const models::Graph& graph) {
  const run::Run& config = change.config;
  const pipeline::Schedule& schedule = config.pipeline.schedule;
  if (schedule.stages < 2 || schedule.stages != schedule.devices()) return {};
  if (to_lower(schedule.name) == partition::kAutomatic) return {};
  if (!has_cuts_for(graph, schedule.stages)) return {};
  Change other = change;
  other.cuts = true;
  other.config = with_cuts(config, graph,
                           smallest_cuts(config, graph, pipeline::slots_of(graph, config.pipeline),
                                         splits_backward(schedule) ? pipeline::Backward::Split
                                                                   : pipeline::Backward::Joined));
  if (other.config.splits == config.splits) return {};
  return other;
}

/// A schedule that holds fewer micro-batches, with a stage on each device. None if the run has it,
/// has only one stage, or lists its actions in a file.
std::optional<Change> with_schedule(Change change, const models::Graph& graph,
                                    std::string_view name) {
  run::Run& config = change.config;
  pipeline::Schedule& schedule = config.pipeline.schedule;
  const bool generated = std::ranges::any_of(
      pipeline::schedule_rules(), [&](const auto& rule) { return rule.name == schedule.name; });
  if (schedule.stages < 2 || (!generated && to_lower(schedule.name) != partition::kAutomatic))
    return {};
  const std::int32_t devices = schedule.devices();
  const bool one_a_device = schedule.stages == devices;
  const bool holds_as_little = schedule.name == "Interleaved" || schedule.name == "Sequential";
  if (one_a_device && (schedule.name == name || (holds_as_little && name == "1F1B"))) return {};
  if (!one_a_device && !has_cuts_for(graph, devices)) return {};
  schedule = pipeline::generate({.name = std::string(name),
                                 .devices = devices,
                                 .micro_batches = schedule.micro_batches,
                                 .device_of = {}});
  change.schedule = true;
  if (one_a_device) {
    std::vector<pipeline::OpRange> ranges = config.pipeline.ranges;
    config = with_cuts(std::move(config), graph, std::move(ranges));
    return change;
  }
  const std::vector<pipeline::Slots> one_each(static_cast<std::size_t>(devices));
  std::vector<pipeline::OpRange> cuts =
      smallest_cuts(config, graph, one_each, pipeline::Backward::Joined);
  config = with_cuts(std::move(config), graph, std::move(cuts));
  change.cuts = true;
  return change;
}

/// Finds a layout near the one of a run that fits into the memory of a device.
class NearestFit {
 public:
  NearestFit(const run::Run& config, const MeasureUse& measure)
      : graph_(network_of(config)), measure_(measure), asked_{config} {
    const bool automatic = !config.chosen_segments.empty();
    if (automatic) asked_ = repeating(asked_);  // a run would choose other segments
    repeats_ = config.recompute == run::Recompute::Stage;
  }

  /// The first change that fits, in the order of what they cost: other cuts, fewer micro-batches in
  /// flight, repeated forwards, stages that wait for each other. A smaller batch comes last,
  /// because it changes the result. If nothing fits: what that says.
  [[nodiscard]] std::string advice() const {
    const std::optional<Change> flowing = with_schedule(asked_, graph_, "1F1B");
    const std::optional<Change> waiting = with_schedule(asked_, graph_, "Sequential");
    for (const std::optional<Change>& change : {std::optional(asked_), flowing, repeated(asked_),
                                                repeated(flowing), waiting, repeated(waiting)})
      if (std::string text = change ? with_any_cuts(*change) : ""; !text.empty()) return text;
    const Change one_by_one = waiting.value_or(asked_);
    const Change least = repeated(one_by_one).value_or(one_by_one);
    for (const Change& change : {asked_, least})
      if (std::string text = with_a_batch(change); !text.empty()) return text;
    return nothing_fits(least);
  }

 private:
  /// None if it repeats them already.
  [[nodiscard]] std::optional<Change> repeated(const std::optional<Change>& change) const {
    if (!change || repeats_) return {};
    return repeating(*change);
  }

  [[nodiscard]] std::string fit(const Change& change) const {
    if (!change.any()) return {};
    const std::int64_t bytes = measure_(change.config).need;
    if (!fits(bytes)) return {};
    return fmt::format("{} fits with {}", words_of(change), human_bytes(bytes));
  }

  [[nodiscard]] std::string with_any_cuts(const Change& change) const {
    if (std::string text = fit(change); !text.empty()) return text;
    const std::optional<Change> cuts = with_other_cuts(change, graph_);
    return cuts ? fit(*cuts) : "";
  }

  /// The largest batch that fits; "" if not even one image does.
  [[nodiscard]] std::string with_a_batch(const Change& change) const {
    const auto need = [&](std::int64_t batch) {
      return measure_(with_batch(change, batch).config).need;
    };
    if (!fits(need(1))) return {};
    std::int64_t largest = 1;
    std::int64_t too_large = change.config.batch_size;
    while (largest + 1 < too_large) {
      const std::int64_t middle = (largest + too_large) / 2;
      (fits(need(middle)) ? largest : too_large) = middle;
    }
    return fit(with_batch(change, largest));
  }

  [[nodiscard]] std::string nothing_fits(const Change& least) const {
    const Change one = with_batch(least, 1);
    const DeviceUse use = measure_(one.config);
    return fmt::format(
        "even {} needs {}, of which {} are the program, its libraries and the images that it "
        "keeps, for each device: raise `device-memory` to {}MB{}",
        words_of(one), human_bytes(use.need), human_bytes(use.rest),
        (use.need + kBaseVaries) / 1'000'000 + 1,
        use.rest < asked_.config.device_memory / 2 ? ", or try more `shards`" : "");
  }

  /// What is proposed fits for certain.
  [[nodiscard]] bool fits(std::int64_t bytes) const {
    return bytes + kBaseVaries <= asked_.config.device_memory;
  }

  models::Graph graph_;
  const MeasureUse& measure_;
  Change asked_;
  bool repeats_ = false;  ///< all segments already
};

}  // namespace

void require_device_memory(const run::Run& config, const MeasureUse& measure) {
  if (config.device_memory == 0) return;
  const std::int64_t needed = measure(config).need;
  if (needed <= config.device_memory) return;
  fail(ErrorKind::Config,
       "the largest device needs {} ({} bytes), but `device-memory` is {} ({} bytes): {}",
       human_bytes(needed), needed, human_bytes(config.device_memory), config.device_memory,
       NearestFit(config, measure).advice());
}

void require_device_memory(const partition::ProcessMemory& forecast, const run::Run& config,
                           const TrainInputs& inputs, const comm::World& world) {
  if (config.device_memory == 0) return;
  try {
    require_device_memory(config, [&](const run::Run& other) {
      if (&other == &config) return most_of(device_use(forecast), world);
      const Session session(other, Use::Training, world);
      return most_of(device_use(forecast_memory(session, other, inputs, forecast.base)), world);
    });
  } catch (const Error&) {
    world.fail_together();
    throw;
  }
}

}  // namespace millrace::train
