// SPDX-License-Identifier: Apache-2.0
#include "partition/layout.hpp"

#include <utility>

#include "partition/cuts.hpp"
#include "pipeline/messages.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/schedule/auto_schedule.hpp"

namespace millrace::partition {

std::vector<OpCost> estimated_costs(const Graph& graph, const pipeline::ProgramOptions& program) {
  return recomputing(graph,
                     analytic_costs(graph, program.batch, program.type, cpu_model(program.type)),
                     program.recompute_layers);
}

Plan automatic_plan(const Graph& graph, std::span<const OpCost> costs, const PlanRequest& request,
                    std::int64_t memory_limit) {
  // Cuts inside blocks cost an extra pass over a value and send more data, so they must save time.
  // Very deep networks always have a boundary between layers close to the best cut.
  constexpr std::size_t kDeep = 400;
  constexpr double kWorth = 0.97;
  Search search;
  search.memory_limit = memory_limit;
  const bool layers_suffice = request.schedule.stages() <= std::ssize(filtered_cuts(graph, {})) + 1;
  if (!layers_suffice) {
    search.cuts = op_cuts(graph);
    return best_plans(graph, costs, request, search).front();
  }
  Plan plan = best_plans(graph, costs, request, search).front();
  if (graph.ops.size() > kDeep) return plan;
  search.cuts = op_cuts(graph);
  Plan finer = best_plans(graph, costs, request, search).front();
  return finer.seconds < kWorth * plan.seconds ? finer : plan;
}

namespace {

/// The slots of the stages of a schedule. They depend hardly on the cuts, so any cuts serve. Shards
/// that run one after the other hold one micro-batch.
std::vector<pipeline::Slots> slots_with_any_cuts(const Graph& graph,
                                                 const pipeline::ScheduleRequest& request) {
  const auto stages = static_cast<std::size_t>(request.stages());
  const std::vector<OpId> cuts = filtered_cuts(graph, {});
  if (request.micro_batches == 1 || cuts.size() + 1 < stages)
    return std::vector<pipeline::Slots>(stages);
  pipeline::PipelinePlan plan;
  std::int32_t first = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    const bool last = s + 1 == stages;
    plan.ranges.push_back({first, last ? pipeline::whole(graph).last : cuts[s].value});
    first = plan.ranges.back().last;
  }
  plan.schedule = with_communication(generate(request), pipeline::links(graph, plan.ranges));
  return pipeline::slots_of(graph, plan);
}

}  // namespace

std::vector<std::string> choose_splits(const Graph& graph, const PlanRequest& request,
                                       const SplitRequest& splits) {
  if (splits.aim == SplitRequest::For::Speed)
    return automatic_plan(graph, estimated_costs(graph, request.program), request,
                          splits.memory_limit)
        .splits;
  const std::vector<pipeline::Slots> slots = slots_with_any_cuts(graph, request.schedule);
  const StageMemory memory = exact_memory(
      std::make_shared<StageBytes>(graph, request.program, request.update, request.sizer), slots);
  return splits_of(graph, shard_by_memory(graph, request.schedule.devices, splits.filter, memory));
}

std::vector<pipeline::StageCost> stage_costs(const Graph& graph, std::span<const OpRange> stages,
                                             const pipeline::ProgramOptions& program) {
  const std::vector<OpCost> ops = estimated_costs(graph, program);
  std::vector<pipeline::StageCost> costs;
  for (const OpRange& stage : stages) costs.push_back(stage_cost(ops, stage, program.recompute));
  return costs;
}

pipeline::Schedule automatic_schedule(const Graph& graph, std::span<const OpRange> stages,
                                      std::vector<pipeline::StageCost> costs,
                                      const pipeline::ScheduleRequest& request) {
  pipeline::AutoRequest automatic;
  automatic.costs.stages = std::move(costs);
  automatic.micro_batches = request.micro_batches;
  automatic.device_of = request.device_of;
  automatic.links = pipeline::links(graph, stages);
  // The memory limit of Grouped.
  const auto count = static_cast<std::int32_t>(stages.size());
  for (std::int32_t s = 0; s < count; ++s) automatic.stash_limit.push_back(2 * (count - s));
  return pipeline::generate_auto(automatic);
}

}  // namespace millrace::partition
