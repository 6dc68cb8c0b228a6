// SPDX-License-Identifier: Apache-2.0
//
// What a run does to stay within the memory of its devices: where it is cut, and what it
// recomputes. The run itself checks later that it does stay within it.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/layout.hpp"
#include "partition/recompute.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

using models::Graph;
using run::Run;

std::int64_t rest_beside_stages(const Graph& graph, const Run& config) {
  std::int64_t rest = train::assumed_rest(config);
  const bool saves = config.logging.keeps && rest > 0;
  const std::int64_t tensors = 1 + std::ssize(update_slots(config.optimiser.kind));
  if (saves)  // copies of the tensors, of an average device, and what HDF5 needs
    rest += 4 * tensors * graph.trainable_elements() / config.pipeline.ranks.devices +
            train::read_back_bytes(tensors * std::ssize(graph.parameters) /
                                   config.pipeline.ranks.devices);
  return rest;
}

partition::Room room_of_stages(const Graph& graph, const Run& config, const MachineFacts& machine) {
  if (config.device_memory == 0) return {};
  const std::int64_t rest = machine.rest ? *machine.rest : rest_beside_stages(graph, config);
  return {.bytes = std::max<std::int64_t>(1, config.device_memory - rest),
          .repeats = config.layout.recompute == run::RecomputeRequest::Auto};
}

partition::PlanRequest sized_request(const Graph& graph, const Run& config,
                                     const pipeline::ScheduleRequest& schedule) {
  partition::PlanRequest request = plan_request(config, schedule);
  if (config.device_memory > 0) request.sizer = train::search_sizer(graph, config);
  return request;
}

void choose_segments(const Graph& graph, const partition::Room& room, Run& config,
                     Notices& notices) {
  pipeline::ProgramOptions program = train::training_program(config);
  program.backward = splits_backward(config.pipeline.schedule) ? pipeline::Backward::Split
                                                               : pipeline::Backward::Joined;
  const std::vector<partition::OpCost> costs =
      partition::estimated_costs(graph, program, partition::cpu_model(program.type));
  double forward = 0.0;
  for (const partition::OpCost& cost : costs) forward += cost.forward;
  double repeated = 0.0;
  for (partition::Recomputation& stage : choose_recomputation(
           graph, costs, config.pipeline, program, train::stage_sizer(graph, config), room.bytes)) {
    repeated += stage.seconds;
    config.chosen_segments.push_back(std::move(stage.chosen));
  }
  config.recompute = pipeline::Recompute::Stage;
  notices.push_back(
      fmt::format("Recomputation: {:.1f} ms of {:.1f} ms forward per micro-batch "
                  "(estimated)",
                  1e3 * repeated, 1e3 * forward));
}

}  // namespace millrace::cli
