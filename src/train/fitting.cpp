// SPDX-License-Identifier: Apache-2.0
//
// Whether a run fits into --device-memory, and which layout near it does.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/balance.hpp"
#include "train/memory.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

/// A change of the configuration, as options.
struct Change {
  std::string words;
  TrainConfig config;
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

/// The cuts between layers with the smallest largest device, if every device has one stage.
std::optional<Change> with_other_cuts(const TrainConfig& config) {
  const pipeline::Schedule& schedule = config.pipeline.schedule;
  if (schedule.stages < 2 || schedule.stages != schedule.devices()) return {};
  const models::Graph graph = network_of(config);
  if (std::ssize(partition::filtered_cuts(graph, {})) < schedule.stages - 1) return {};
  pipeline::ProgramOptions program = training_program(config);
  program.backward =
      splits_backward(schedule) ? pipeline::Backward::Split : pipeline::Backward::Joined;
  const auto bytes = std::make_shared<partition::StageBytes>(
      graph, program, partition::UpdateMemory(config.optimiser.kind, config.precision),
      search_sizer(graph, config));
  Change change{.words = {},
                .config = with_cuts(config, graph,
                                    partition::shard_by_memory(
                                        graph, schedule.stages, {},
                                        partition::exact_memory(
                                            bytes, pipeline::slots_of(graph, config.pipeline))))};
  if (change.config.splits == config.splits) return {};
  change.words = fmt::format("--pipeline-splits '{}'", join(change.config.splits, " "));
  return change;
}

/// Whether a proposal fits for certain.
bool surely_fits(std::int64_t bytes, const TrainConfig& config) {
  return bytes + kBaseVaries <= config.device_memory;
}

/// The largest batch that fits; none if not even one image does.
std::optional<std::int64_t> largest_batch(const TrainConfig& config, const DeviceNeed& need) {
  if (!surely_fits(need(with_batch(config, 1)), config)) return {};
  std::int64_t fits = 1;
  std::int64_t too_large = config.batch_size;
  while (fits + 1 < too_large) {
    const std::int64_t middle = (fits + too_large) / 2;
    (surely_fits(need(with_batch(config, middle)), config) ? fits : too_large) = middle;
  }
  return fits;
}

/// The first change that fits: those that cost nothing come first, and a smaller batch last,
/// because it changes the result. "" if there is none.
std::string nearest_that_fits(const TrainConfig& config, const DeviceNeed& need) {
  std::vector<Change> changes;
  const std::optional<Change> cuts = with_other_cuts(config);
  if (cuts) changes.push_back(*cuts);
  if (config.recompute == Recompute::None) {
    changes.push_back({"--recompute segments", recomputing(config)});
    if (cuts) changes.push_back({"--recompute segments " + cuts->words, recomputing(cuts->config)});
  }
  for (const auto& [words, changed] : changes)
    if (const std::int64_t bytes = need(changed); surely_fits(bytes, config))
      return fmt::format("{} fits with {}", words, human_bytes(bytes));
  for (const auto& [words, changed] :
       {Change{"", config}, Change{"--recompute segments ", recomputing(config)}})
    if (const std::optional<std::int64_t> batch = largest_batch(changed, need))
      return fmt::format("{}--batch-size {} fits with {}", words, *batch,
                         human_bytes(need(with_batch(changed, *batch))));
  return {};
}

}  // namespace

void require_device_memory(const TrainConfig& config, const DeviceNeed& need) {
  if (config.device_memory == 0) return;
  const std::int64_t needed = need(config);
  if (needed <= config.device_memory) return;
  const std::string nearest = nearest_that_fits(config, need);
  fail(ErrorKind::Config,
       "the largest device needs {} ({} bytes), but --device-memory is {} ({} bytes): {}",
       human_bytes(needed), needed, human_bytes(config.device_memory), config.device_memory,
       nearest.empty() ? fmt::format("even --recompute segments --batch-size 1 needs {}: raise "
                                     "--device-memory above that, or try more --shards",
                                     human_bytes(need(with_batch(recomputing(config), 1))))
                       : nearest);
}

void require_device_memory(const partition::ProcessMemory& forecast, const TrainConfig& config,
                           const TrainInputs& inputs, const comm::World& world) {
  if (config.device_memory == 0) return;
  try {
    require_device_memory(config, [&](const TrainConfig& other) {
      if (&other == &config) return world.maximum(device_need(forecast));
      const Session session(other, Use::Training, world);
      return world.maximum(device_need(forecast_memory(session, other, inputs, forecast.base)));
    });
  } catch (const Error&) {
    world.fail_together();
    throw;
  }
}

}  // namespace millrace::train
