// SPDX-License-Identifier: Apache-2.0
//
// What a run does to stay within --device-memory: where it is cut, and what it recomputes. The run
// itself checks later that it does stay within it.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/layout.hpp"
#include "partition/recompute.hpp"
#include "pipeline/segments.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

using models::Graph;
using train::TrainConfig;

std::int64_t device_memory(Reader& read) {
  if (!read.given("device-memory")) return 0;
  const std::string text = read.text("device-memory");
  const std::optional<std::int64_t> bytes = parse_bytes(text);
  if (!bytes)
    fail(ErrorKind::Usage, "{}: invalid size '{}'; examples: 512MiB, 8GB",
         read.where("device-memory"), text);
  return *bytes;
}

bool recomputes_to_fit(const Reader& read) { return read.options().text("recompute") == "auto"; }

std::int64_t rest_beside_stages(const Reader& read, const Graph& graph, const TrainConfig& config) {
  std::int64_t rest = train::assumed_rest(config);
  const bool saves = !read.options().flag("no-logs") && rest > 0;
  const std::int64_t tensors = 1 + std::ssize(update_slots(config.optimiser.kind));
  if (saves)  // copies of the tensors, of an average device, and what HDF5 needs
    rest += 4 * tensors * graph.trainable_elements() / config.pipeline.ranks.devices +
            train::open_checkpoint_bytes(tensors * std::ssize(graph.parameters) /
                                         config.pipeline.ranks.devices);
  return rest;
}

std::int64_t stage_limit(const Reader& read, const Graph& graph, const TrainConfig& config) {
  if (config.device_memory == 0) return 0;
  const std::int64_t rest = rest_beside_stages(read, graph, config);
  return std::max<std::int64_t>(1, config.device_memory - rest);
}

namespace {

double forward_seconds(std::span<const partition::OpCost> costs) {
  double sum = 0.0;
  for (const partition::OpCost& cost : costs) sum += cost.forward;
  return sum;
}

}  // namespace

partition::PlanRequest sized_request(const Graph& graph, const TrainConfig& config,
                                     const pipeline::ScheduleRequest& schedule) {
  partition::PlanRequest request = plan_request(config, schedule);
  if (config.device_memory > 0) request.sizer = train::search_sizer(graph, config);
  return request;
}

std::vector<std::string> automatic_splits(Reader& read, const Graph& graph,
                                          const TrainConfig& config,
                                          const pipeline::ScheduleRequest& schedule) {
  partition::PlanRequest request = sized_request(graph, config, schedule);
  const partition::SplitRequest splits{.memory_limit = stage_limit(read, graph, config)};
  for (const bool again : {false, true}) {
    if (again && !recomputes_to_fit(read)) break;
    if (again) request.program.recompute = pipeline::Recompute::Stage;
    try {
      return partition::choose_splits(graph, request, splits);
    } catch (const Error&) {
      if (config.device_memory == 0) throw;
    }
  }
  // What needs the least, as far as that can be found. The run finds out whether it does fit, and
  // says what would.
  if (schedule.stages() != schedule.devices) return partition::choose_splits(graph, request, {});
  return partition::choose_splits(graph, request, {.aim = partition::SplitRequest::For::Memory});
}

partition::ScheduleChoice fastest_schedule(Reader& read, const Graph& graph,
                                           const TrainConfig& config,
                                           const pipeline::ScheduleRequest& open) {
  partition::PlanRequest request = sized_request(graph, config, open);
  const std::vector<partition::OpCost> costs =
      partition::estimated_costs(graph, request.program, request.device);
  const std::int64_t limit = stage_limit(read, graph, config);
  for (const bool again : {false, true}) {
    if (again && !recomputes_to_fit(read)) break;
    if (again) request.program.recompute = pipeline::Recompute::Stage;
    try {
      return partition::choose_schedule(graph, costs, request, limit);
    } catch (const Error&) {
      if (config.device_memory == 0) throw;
    }
  }
  // What needs the least: one micro-batch at a time. The run finds out whether it does fit, and
  // says what would.
  partition::ScheduleChoice least{open, {}};
  least.schedule.name = "Sequential";
  least.plan.splits =
      partition::choose_splits(graph, request, {.aim = partition::SplitRequest::For::Memory});
  return least;
}

void choose_segments(Reader& read, const Graph& graph, TrainConfig& config, Notices& notices) {
  const pipeline::PipelinePlan& plan = config.pipeline;
  pipeline::ProgramOptions program = train::training_program(config);
  program.backward =
      splits_backward(plan.schedule) ? pipeline::Backward::Split : pipeline::Backward::Joined;
  const std::vector<partition::OpCost> costs =
      partition::estimated_costs(graph, program, partition::cpu_model(program.type));
  const std::vector<pipeline::Slots> slots = pipeline::slots_of(graph, plan);
  const partition::StageSizer sizer = train::stage_sizer(graph, config);
  const std::int64_t limit = stage_limit(read, graph, config);
  pipeline::ProgramOptions segments = program;
  segments.recompute = pipeline::Recompute::Stage;
  std::vector<std::int64_t> fixed;
  std::vector<std::int64_t> bytes;  // of activations: the least, then as chosen
  for (std::size_t s = 0; s < plan.ranges.size(); ++s) {
    const pipeline::OpRange range = plan.ranges[s];
    // What a stage needs besides its activations does not depend on what it repeats.
    fixed.push_back(sizer(range, program, slots[s]) -
                    partition::program_bytes(graph, range, program, slots[s]));
    bytes.push_back(partition::program_bytes(
        graph, range, with_segments(graph, range, segments, slots[s]), slots[s]));
  }
  double seconds = 0.0;
  for (std::size_t s = 0; s < plan.ranges.size(); ++s) {
    std::int64_t left = limit;
    for (std::size_t other = 0; other < plan.ranges.size(); ++other)
      if (plan.schedule.device(static_cast<std::int32_t>(other)) ==
          plan.schedule.device(static_cast<std::int32_t>(s)))
        left -= fixed[other] + (other == s ? 0 : bytes[other]);
    partition::Recomputation stage =
        partition::choose_recomputation(graph, costs, plan.ranges[s], program, slots[s], left);
    bytes[s] = stage.bytes;
    seconds += stage.seconds;
    config.chosen_segments.push_back(std::move(stage.chosen));
  }
  config.recompute = pipeline::Recompute::Stage;
  notices.push_back(
      fmt::format("Recomputation: {:.1f} ms of {:.1f} ms forward per micro-batch "
                  "(estimated)",
                  1e3 * seconds, 1e3 * forward_seconds(costs)));
}

}  // namespace millrace::cli
