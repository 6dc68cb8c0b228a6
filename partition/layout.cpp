// SPDX-License-Identifier: Apache-2.0
#include "partition/layout.hpp"

#include <optional>
#include <utility>

#include "core/error.hpp"
#include "partition/cuts.hpp"
#include "partition/search.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/schedule/auto_schedule.hpp"
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::partition {
std::vector<OpCost> estimated_costs(const Graph& graph, const pipeline::ProgramOptions& program,
                                    const DeviceModel& device) {
  return recomputing(graph, analytic_costs(graph, program.batch, program.type, device),
                     program.recompute_layers);
}

std::vector<OpCost> costs_of(const Graph& graph, const PlanRequest& request) {
  return request.costs.empty() ? estimated_costs(graph, request.program, request.device)
                               : request.costs;
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
  if (!layers_suffice) search.cuts = op_cuts(graph);
  Plan plan = best_plans(graph, costs, request, search).front();
  // With segments, each stage that is looked at takes long to size.
  const bool sizes_segments =
      memory_limit > 0 && request.program.recompute == pipeline::Recompute::Stage;
  if (!layers_suffice || graph.ops.size() > kDeep || sizes_segments) return plan;
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

std::vector<std::string> splits_by_memory(const Graph& graph, const PlanRequest& request,
                                          const LayerFilter& filter) {
  const std::vector<pipeline::Slots> slots = slots_with_any_cuts(graph, request.schedule);
  const StageMemory memory = exact_memory(
      std::make_shared<StageBytes>(graph, request.program, request.update, request.sizer), slots);
  return splits_of(graph, shard_by_memory(graph, request.schedule.devices, filter, memory));
}

pipeline::Costs estimated_step(const Graph& graph, std::span<const OpRange> stages,
                               const PlanRequest& request) {
  const std::vector<OpCost> ops = costs_of(graph, request);
  std::vector<pipeline::StageCost> costs;
  for (const OpRange& stage : stages)
    costs.push_back(stage_cost(ops, stage, request.program.recompute));
  return step_costs(graph, stages, std::move(costs), request);
}

pipeline::Schedule automatic_schedule(const Graph& graph, std::span<const OpRange> stages,
                                      const pipeline::Costs& costs,
                                      const pipeline::ScheduleRequest& request) {
  pipeline::AutoRequest automatic;
  automatic.costs = costs;
  automatic.micro_batches = request.micro_batches;
  automatic.device_of = request.device_of;
  automatic.links = pipeline::links(graph, stages);
  // The memory limit of Grouped.
  const auto count = static_cast<std::int32_t>(stages.size());
  for (std::int32_t s = 0; s < count; ++s) automatic.stash_limit.push_back(2 * (count - s));
  const auto seconds = [&](const pipeline::Schedule& compute) {
    return simulate(with_communication(compute, automatic.links), automatic.links, costs).makespan;
  };
  pipeline::Schedule joined = pipeline::generate_auto(automatic);
  automatic.split_backward = true;
  pipeline::Schedule split = pipeline::generate_auto(automatic);
  return seconds(split) < kWorthIt * seconds(joined) ? split : joined;
}

std::vector<ScheduleCandidate> schedules_for(const Graph& graph,
                                             const pipeline::ScheduleRequest& open) {
  const std::ptrdiff_t most = std::ssize(op_cuts(graph)) + 1;
  std::vector<ScheduleCandidate> all;
  for (const pipeline::ScheduleRule& rule : pipeline::schedule_rules()) {
    if (rule.name == "Interleaved") continue;  // 1F1B
    if (open.devices == 1 && rule.name != "Sequential") continue;
    const bool free = rule.placement == pipeline::StagePlacement::Free;
    const bool loop = rule.placement == pipeline::StagePlacement::Loop;
    const std::int32_t least = free ? 1 : 2;
    for (std::int32_t chunks = least; chunks <= (loop ? 4 : least); chunks *= 2)
      if (open.devices * chunks <= most)
        all.push_back({.schedule = {.name = std::string(rule.name),
                                    .devices = open.devices,
                                    .chunks = chunks,
                                    .micro_batches = open.micro_batches,
                                    .device_of = {}}});
  }
  return all;
}

ScheduleChoice choose_schedule(const Graph& graph, std::span<const OpCost> costs,
                               const PlanRequest& request, std::int64_t memory_limit) {
  using Found = Sized<ScheduleChoice>;
  PlanRequest tried = request;
  const auto find = [&](const ScheduleCandidate& candidate) -> std::optional<Found> {
    tried.schedule = candidate.schedule;
    Plan plan = automatic_plan(graph, costs, tried, memory_limit);
    const double seconds = plan.seconds;
    return Found{.layout = {tried.schedule, std::move(plan)}, .cost = seconds};
  };
  const auto list = [&](const Found& on) {
    tried.schedule = on.layout.schedule;
    const std::vector<OpRange> stages = stages_of(graph, on.layout.plan.splits);
    const pipeline::Schedule compute = automatic_schedule(
        graph, stages, step_costs(graph, stages, on.layout.plan.costs, tried), tried.schedule);
    ScheduleChoice listed{tried.schedule, make_plan(graph, costs, stages, tried, compute)};
    listed.schedule.name = listed.plan.schedule = kAutomatic;
    const double seconds = listed.plan.seconds;
    const bool fits = memory_limit == 0 || largest_device(listed.plan) <= memory_limit;
    return Found{.layout = std::move(listed), .cost = seconds, .fits = fits};
  };
  std::optional<Found> best =
      best_schedule<ScheduleChoice>(schedules_for(graph, request.schedule), find, list);
  if (!best)
    fail(ErrorKind::Config,
         "{} stages need {} cuts, but the network has only {} possible cuts; use fewer `shards`",
         request.schedule.devices, request.schedule.devices - 1, op_cuts(graph).size());
  return std::move(best->layout);
}

ScheduleChoice fitting_layout(const Graph& graph, const PlanRequest& request, const Room& room,
                              Open open) {
  const auto choose = [&](const PlanRequest& tried, std::int64_t bytes) {
    const std::vector<OpCost> costs = costs_of(graph, tried);
    if (open == Open::ScheduleAndCuts) return choose_schedule(graph, costs, tried, bytes);
    return ScheduleChoice{tried.schedule, automatic_plan(graph, costs, tried, bytes)};
  };
  const auto attempt = [&](const PlanRequest& tried) -> std::optional<ScheduleChoice> {
    try {
      return choose(tried, room.bytes);
    } catch (const Error& error) {  // nothing fits
      if (room.bytes == 0 || error.kind() != ErrorKind::Config) throw;
      return std::nullopt;
    }
  };
  const std::optional<ScheduleChoice> kept = attempt(request);
  if (kept && !room.repeats) return *kept;
  // Not all passes will be repeated, so that their time is a bound.
  if (kept && kWorthIt * kept->plan.seconds <= choose(request, 0).plan.seconds) return *kept;
  PlanRequest compact = request;
  if (room.repeats) compact.program.recompute = pipeline::Recompute::Stage;
  const std::optional<ScheduleChoice> repeated = room.repeats ? attempt(compact) : std::nullopt;
  if (repeated && (!kept || repeated->plan.seconds < kWorthIt * kept->plan.seconds))
    return *repeated;
  if (kept) return *kept;
  ScheduleChoice least{request.schedule, {}};
  if (open == Open::ScheduleAndCuts) least.schedule.name = "Sequential";
  const bool one_a_device = request.schedule.stages() == request.schedule.devices;
  least.plan.splits = one_a_device
                          ? splits_by_memory(graph, compact)
                          : automatic_plan(graph, costs_of(graph, compact), compact, 0).splits;
  return least;
}

}  // namespace millrace::partition
