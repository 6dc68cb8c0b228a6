// SPDX-License-Identifier: Apache-2.0
//
// Whether a run fits into --device-memory, and which layout near it does.
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

/// A configuration near the one that was asked for, with the options that lead there.
struct Change {
  std::string words;
  TrainConfig config;

  [[nodiscard]] Change then(std::string_view more, TrainConfig changed) const {
    return {words.empty() ? std::string(more) : fmt::format("{} {}", words, more),
            std::move(changed)};
  }
};

TrainConfig with_batch(TrainConfig config, std::int64_t batch) {
  if (config.validation_batch_size == config.batch_size) config.validation_batch_size = batch;
  config.batch_size = batch;
  return config;
}

TrainConfig recomputing(TrainConfig config) {
  config.recompute = Recompute::Stage;
  config.recompute_layers.clear();
  config.chosen_segments.clear();
  return config;
}

/// The cuts between layers with the smallest largest device, for a stage on each device.
std::vector<pipeline::OpRange> smallest_cuts(const TrainConfig& config, const models::Graph& graph,
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

std::optional<Change> with_other_cuts(const Change& change, const models::Graph& graph) {
  const TrainConfig& config = change.config;
  const pipeline::Schedule& schedule = config.pipeline.schedule;
  if (schedule.stages < 2 || schedule.stages != schedule.devices()) return {};
  if (!has_cuts_for(graph, schedule.stages)) return {};
  TrainConfig other =
      with_cuts(config, graph,
                smallest_cuts(config, graph, pipeline::slots_of(graph, config.pipeline),
                              splits_backward(schedule) ? pipeline::Backward::Split
                                                        : pipeline::Backward::Joined));
  if (other.splits == config.splits) return {};
  const std::string words = fmt::format("--pipeline-splits '{}'", join(other.splits, " "));
  return change.then(words, std::move(other));
}

/// A schedule that holds fewer micro-batches, with a stage on each device. None if the run has it,
/// has only one stage, or lists its actions in a file.
std::optional<Change> with_schedule(const Change& change, const models::Graph& graph,
                                    std::string_view name) {
  TrainConfig config = change.config;
  pipeline::Schedule& schedule = config.pipeline.schedule;
  const bool generated = std::ranges::any_of(
      pipeline::schedule_rules(), [&](const auto& rule) { return rule.name == schedule.name; });
  if (schedule.stages < 2 || (!generated && to_lower(schedule.name) != partition::kAutomatic))
    return {};
  const bool holds_as_little = schedule.name == "Interleaved" || schedule.name == "Sequential";
  if (schedule.name == name || (holds_as_little && name == "1F1B")) return {};
  const std::int32_t devices = schedule.devices();
  const bool one_a_device = schedule.stages == devices;
  if (!one_a_device && !has_cuts_for(graph, devices)) return {};
  std::string words = fmt::format("--pipeline-schedule {}", name);
  schedule = pipeline::generate(
      {.name = std::string(name),
       .devices = devices,
       .micro_batches = schedule.micro_batches,
       .device_of = one_a_device ? schedule.device_of : std::vector<std::int32_t>()});
  if (one_a_device)
    return change.then(words, with_cuts(std::move(config), graph, change.config.pipeline.ranges));
  const std::vector<pipeline::Slots> one_each(static_cast<std::size_t>(devices));
  std::vector<pipeline::OpRange> cuts =
      smallest_cuts(config, graph, one_each, pipeline::Backward::Joined);
  config = with_cuts(std::move(config), graph, std::move(cuts));
  words += fmt::format(" --pipeline-splits '{}'", join(config.splits, " "));
  return change.then(words, std::move(config));
}

/// Finds a layout near the one of a run that fits into the memory of a device.
class NearestFit {
 public:
  NearestFit(const TrainConfig& config, const MeasureUse& measure)
      : graph_(network_of(config)),
        measure_(measure),
        repeats_(config.recompute != Recompute::None),
        asked_{{}, repeats_ ? recomputing(config) : config} {}

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
    return change->then("--recompute segments", recomputing(change->config));
  }

  [[nodiscard]] std::string fit(const Change& change) const {
    if (change.words.empty()) return {};  // nothing was changed
    const std::int64_t bytes = measure_(change.config).need;
    if (!fits(bytes)) return {};
    return fmt::format("{} fits with {}", change.words, human_bytes(bytes));
  }

  [[nodiscard]] std::string with_any_cuts(const Change& change) const {
    if (std::string text = fit(change); !text.empty()) return text;
    const std::optional<Change> cuts = with_other_cuts(change, graph_);
    return cuts ? fit(*cuts) : "";
  }

  /// The largest batch that fits; "" if not even one image does.
  [[nodiscard]] std::string with_a_batch(const Change& change) const {
    const auto need = [&](std::int64_t batch) {
      return measure_(with_batch(change.config, batch)).need;
    };
    if (!fits(need(1))) return {};
    std::int64_t largest = 1;
    std::int64_t too_large = change.config.batch_size;
    while (largest + 1 < too_large) {
      const std::int64_t middle = (largest + too_large) / 2;
      (fits(need(middle)) ? largest : too_large) = middle;
    }
    return fit(
        change.then(fmt::format("--batch-size {}", largest), with_batch(change.config, largest)));
  }

  [[nodiscard]] std::string nothing_fits(const Change& least) const {
    const Change one = least.then("--batch-size 1", with_batch(least.config, 1));
    const DeviceUse use = measure_(one.config);
    return fmt::format(
        "even {} needs {}, of which {} are the program, its libraries and the images that it "
        "keeps, for each device: raise --device-memory above that{}",
        one.words, human_bytes(use.need), human_bytes(use.rest),
        use.rest < asked_.config.device_memory / 2 ? ", or try more --shards" : "");
  }

  /// What is proposed fits for certain.
  [[nodiscard]] bool fits(std::int64_t bytes) const {
    return bytes + kBaseVaries <= asked_.config.device_memory;
  }

  models::Graph graph_;
  const MeasureUse& measure_;
  bool repeats_;
  Change asked_;
};

}  // namespace

void require_device_memory(const TrainConfig& config, const MeasureUse& measure) {
  if (config.device_memory == 0) return;
  const std::int64_t needed = measure(config).need;
  if (needed <= config.device_memory) return;
  fail(ErrorKind::Config,
       "the largest device needs {} ({} bytes), but --device-memory is {} ({} bytes): {}",
       human_bytes(needed), needed, human_bytes(config.device_memory), config.device_memory,
       NearestFit(config, measure).advice());
}

void require_device_memory(const partition::ProcessMemory& forecast, const TrainConfig& config,
                           const TrainInputs& inputs, const comm::World& world) {
  if (config.device_memory == 0) return;
  try {
    require_device_memory(config, [&](const TrainConfig& other) {
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
