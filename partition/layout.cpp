// SPDX-License-Identifier: Apache-2.0
#include "partition/layout.hpp"

#include <optional>
#include <utility>

#include "core/error.hpp"
#include "partition/cuts.hpp"
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
  if (!layers_suffice) {
    search.cuts = op_cuts(graph);
    return best_plans(graph, costs, request, search).front();
  }
  Plan plan = best_plans(graph, costs, request, search).front();
  // With segments, each stage that is looked at takes long to size.
  const bool sizes_segments =
      memory_limit > 0 && request.program.recompute == pipeline::Recompute::Stage;
  if (graph.ops.size() > kDeep || sizes_segments) return plan;
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
    return automatic_plan(graph, costs_of(graph, request), request, splits.memory_limit).splits;
  const std::vector<pipeline::Slots> slots = slots_with_any_cuts(graph, request.schedule);
  const StageMemory memory = exact_memory(
      std::make_shared<StageBytes>(graph, request.program, request.update, request.sizer), slots);
  return splits_of(graph, shard_by_memory(graph, request.schedule.devices, splits.filter, memory));
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

std::vector<pipeline::ScheduleRequest> schedules_for(const Graph& graph,
                                                     const pipeline::ScheduleRequest& open) {
  const std::ptrdiff_t most = std::ssize(op_cuts(graph)) + 1;
  std::vector<pipeline::ScheduleRequest> all;
  for (const pipeline::ScheduleRule& rule : pipeline::schedule_rules()) {
    if (rule.name == "Interleaved") continue;  // 1F1B
    const bool free = rule.placement == pipeline::StagePlacement::Free;
    const bool loop = rule.placement == pipeline::StagePlacement::Loop;
    const std::int32_t least = free ? 1 : 2;
    for (std::int32_t chunks = least; chunks <= (loop ? 4 : least); chunks *= 2) {
      const pipeline::ScheduleRequest schedule{.name = std::string(rule.name),
                                               .devices = open.devices,
                                               .chunks = chunks,
                                               .micro_batches = open.micro_batches,
                                               .device_of = {}};
      if (schedule.stages() <= most) all.push_back(schedule);
    }
  }
  return all;
}

ScheduleChoice choose_schedule(const Graph& graph, std::span<const OpCost> costs,
                               const PlanRequest& request, std::int64_t memory_limit) {
  std::optional<ScheduleChoice> best;
  std::optional<ScheduleChoice> one_a_device;  // of those, the fastest
  std::optional<Error> refusal;
  const auto offer = [](std::optional<ScheduleChoice>& to, const ScheduleChoice& choice) {
    if (!to || choice.plan.seconds < kWorthIt * to->plan.seconds) to = choice;
  };
  for (const pipeline::ScheduleRequest& schedule : schedules_for(graph, request.schedule)) {
    PlanRequest tried = request;
    tried.schedule = schedule;
    try {
      const ScheduleChoice choice{schedule, automatic_plan(graph, costs, tried, memory_limit)};
      offer(best, choice);
      if (schedule.stages() == schedule.devices) offer(one_a_device, choice);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Config) throw;
      if (!refusal) refusal = error;  // too little memory; that of the first schedule is the least
    }
  }
  if (refusal && !best) throw Error(*refusal);
  if (!best)
    fail(ErrorKind::Config,
         "{} stages need {} cuts, but the network has only {} possible cuts; use fewer `shards`",
         request.schedule.devices, request.schedule.devices - 1, op_cuts(graph).size());
  if (!one_a_device) return *best;
  const std::vector<OpRange> stages = stages_of(graph, one_a_device->plan.splits);
  PlanRequest tried = request;
  tried.schedule = one_a_device->schedule;
  const pipeline::Schedule compute = automatic_schedule(
      graph, stages, step_costs(graph, stages, one_a_device->plan.costs, tried), tried.schedule);
  ScheduleChoice listed{tried.schedule, make_plan(graph, costs, stages, tried, compute)};
  listed.schedule.name = listed.plan.schedule = kAutomatic;
  if (memory_limit == 0 || largest_device(listed.plan) <= memory_limit) offer(best, listed);
  return *best;
}

namespace {

PlanRequest repeating(PlanRequest request) {
  request.program.recompute = pipeline::Recompute::Stage;
  return request;
}

double seconds_of(const Plan& plan) { return plan.seconds; }
double seconds_of(const ScheduleChoice& choice) { return choice.plan.seconds; }

/// What `choose` finds within some bytes; none if nothing fits.
template <class Choose>
auto attempt(const Choose& choose, const PlanRequest& request, std::int64_t bytes)
    -> std::optional<decltype(choose(request, bytes))> {
  try {
    return choose(request, bytes);
  } catch (const Error& error) {
    if (bytes == 0 || error.kind() != ErrorKind::Config) throw;
    return std::nullopt;
  }
}

/// The fastest that `choose` finds within the room, with all passes repeated or with none; none if
/// nothing fits. Not all passes will be repeated, so that their time is a bound.
template <class Choose>
auto within(const PlanRequest& request, const Room& room, const Choose& choose) {
  auto kept = attempt(choose, request, room.bytes);
  if (!room.repeats) return kept;
  if (kept && kWorthIt * seconds_of(*kept) <= seconds_of(choose(request, 0))) return kept;
  auto repeated = attempt(choose, repeating(request), room.bytes);
  const bool faster = repeated && (!kept || seconds_of(*repeated) < kWorthIt * seconds_of(*kept));
  return faster ? repeated : kept;
}

}  // namespace

std::vector<std::string> fitting_splits(const Graph& graph, const PlanRequest& request,
                                        const Room& room) {
  const auto found = within(request, room, [&](const PlanRequest& tried, std::int64_t bytes) {
    return automatic_plan(graph, costs_of(graph, tried), tried, bytes);
  });
  if (found) return found->splits;
  const bool one_a_device = request.schedule.stages() == request.schedule.devices;
  return choose_splits(
      graph, room.repeats ? repeating(request) : request,
      {.aim = one_a_device ? SplitRequest::For::Memory : SplitRequest::For::Speed});
}

ScheduleChoice fitting_schedule(const Graph& graph, const PlanRequest& request, const Room& room) {
  const auto found = within(request, room, [&](const PlanRequest& tried, std::int64_t bytes) {
    return choose_schedule(graph, costs_of(graph, tried), tried, bytes);
  });
  if (found) return *found;
  ScheduleChoice least{request.schedule, {}};
  least.schedule.name = "Sequential";
  least.plan.splits = choose_splits(graph, room.repeats ? repeating(request) : request,
                                    {.aim = SplitRequest::For::Memory});
  return least;
}

}  // namespace millrace::partition
