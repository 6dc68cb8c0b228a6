// SPDX-License-Identifier: Apache-2.0
#include "pipeline/pipeline_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace millrace::pipeline {
namespace {

std::vector<std::int32_t> stage_by_op(std::span<const OpRange> ranges) {
  std::vector<std::int32_t> stage_of;
  for (std::size_t s = 0; s < ranges.size(); ++s)
    for (std::int32_t op = ranges[s].first; op < ranges[s].last; ++op)
      stage_of.push_back(static_cast<std::int32_t>(s));
  return stage_of;
}

}  // namespace

std::vector<Message> messages(const Graph& graph, std::span<const OpRange> ranges) {
  const std::vector<std::int32_t> stage_of = stage_by_op(ranges);
  std::vector<std::set<std::int32_t>> readers(graph.values.size());
  for (std::size_t op = 0; op < graph.ops.size(); ++op)
    for (const ValueId value : graph.ops[op].inputs) readers[value.at()].insert(stage_of[op]);
  const std::vector<bool> wanted = models::wanted_gradients(graph);
  std::vector<Message> result;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const ValueId value{static_cast<std::int32_t>(v)};
    if (!graph.value(value).producer.valid()) continue;  // images are read where they are needed
    const std::int32_t maker = stage_of[graph.value(value).producer.at()];
    std::int32_t before = maker;
    for (const std::int32_t reader : readers[v]) {
      if (reader == maker) continue;
      result.push_back({value, maker, reader, false});
      if (wanted[v]) result.push_back({value, reader, before, true});
      before = reader;
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<Link> links(std::span<const Message> messages) {
  std::map<std::pair<std::int32_t, std::int32_t>, Link> by_ends;
  for (const Message& message : messages) {
    const auto [from, to] = std::minmax(message.from, message.to);
    Link& link = by_ends.try_emplace({from, to}, Link{from, to, false, false}).first->second;
    (message.gradient ? link.gradients : link.activations) = true;
  }
  std::vector<Link> result;
  result.reserve(by_ends.size());
  for (const auto& entry : by_ends) result.push_back(entry.second);
  return result;
}

std::vector<Link> links(const Graph& graph, std::span<const OpRange> ranges) {
  return links(messages(graph, ranges));
}

namespace {

/// One input gradient is sent while the next is computed.
constexpr int kOutboxSlots = 2;
/// Micro-batches of evaluation in a stage at once, for the same reason.
constexpr int kEvaluationSlots = 2;

}  // namespace

std::int32_t RankMap::first_of(std::int32_t rank) const {
  if (!shares.empty()) return std::accumulate(shares.begin(), shares.begin() + rank, 0);
  return static_cast<std::int32_t>((std::int64_t{rank} * all_devices() + ranks - 1) / ranks);
}

std::int32_t RankMap::most_devices() const {
  if (!shares.empty()) return *std::ranges::max_element(shares);
  return (all_devices() + ranks - 1) / ranks;
}

std::int32_t RankMap::rank_of(std::int32_t replica, std::int32_t device) const {
  const std::int32_t at = replica * devices + device;
  if (shares.empty()) return static_cast<std::int32_t>(std::int64_t{at} * ranks / all_devices());
  std::int32_t rank = 0;
  for (std::int32_t end = shares.front(); at >= end; end += shares[static_cast<std::size_t>(rank)])
    ++rank;
  return rank;
}

PipelinePlan plan_of_one_stage(const Graph& graph, std::int32_t micro_batches) {
  PipelinePlan plan;
  plan.ranges = {whole(graph)};
  ScheduleRequest request;
  request.name = "Sequential";
  request.micro_batches = micro_batches;
  plan.schedule = with_communication(generate(request), {});
  return plan;
}

PipelinePlan forward_plan(const Graph& graph, const PipelinePlan& plan,
                          std::int32_t micro_batches) {
  PipelinePlan forward = plan;
  const std::vector<Link> all = links(graph, plan.ranges);
  forward.schedule =
      with_communication(generate_forward(plan.schedule.device_of, micro_batches), all);
  forward.joint = {};
  return forward;
}

std::vector<std::vector<PlanEntry>> lists_by_rank(const PipelinePlan& plan,
                                                  std::span<const Link> links) {
  std::vector<std::vector<PlanEntry>> lists(static_cast<std::size_t>(plan.ranks.ranks));
  const std::int32_t stages = plan.schedule.stages;
  for (std::size_t rank = 0; rank < plan.joint.lists.size(); ++rank)
    for (Action action : plan.joint.lists[rank]) {
      const std::int32_t replica = action.stage / stages;
      action.stage %= stages;
      if (action.peer >= 0) action.peer %= stages;
      const auto index = static_cast<std::int32_t>(lists[rank].size());
      lists[rank].push_back({replica, {plan.schedule.device(action.stage), index}, action});
    }
  if (plan.is_joint()) return lists;
  for (const Entry& entry : event_order(plan.schedule, links))
    for (std::int32_t r = 0; r < plan.ranks.replicas; ++r)
      lists[static_cast<std::size_t>(plan.ranks.rank_of(r, entry.device))].push_back(
          {r, entry, plan.schedule.at(entry)});
  return lists;
}

Schedule joint_order(const PipelinePlan& plan, std::span<const Link> links) {
  Schedule joint{.name = plan.schedule.name,
                 .stages = plan.unit(plan.ranks.replicas, 0),
                 .micro_batches = plan.schedule.micro_batches,
                 .device_of = {},
                 .lists = {}};
  for (std::int32_t r = 0; r < plan.ranks.replicas; ++r)
    for (std::int32_t s = 0; s < plan.schedule.stages; ++s)
      joint.device_of.push_back(plan.rank_of(r, s));
  for (const std::vector<PlanEntry>& list : lists_by_rank(plan, links)) {
    std::vector<Action>& own = joint.lists.emplace_back();
    for (const auto& [replica, entry, action] : list)
      if (is_compute(action.kind))
        own.push_back({action.kind, plan.unit(replica, action.stage), action.micro_batch});
  }
  return joint;
}

Schedule joint_schedule(const Schedule& compute, std::span<const Link> links,
                        std::int32_t replicas) {
  const std::int32_t stages = compute.stages / replicas;
  const std::vector<Link> all = links_of_units(links, stages, replicas);
  Schedule joint = with_communication(compute, all);
  for (std::vector<Action>& list : joint.lists)
    std::ranges::stable_sort(std::ranges::find(list, ActionKind::Update, &Action::kind), list.end(),
                             {}, [&](const Action& update) { return update.stage % stages; });
  validate(joint, all);
  return joint;
}

std::vector<Link> links_of_units(std::span<const Link> links, std::int32_t stages,
                                 std::int32_t replicas) {
  std::vector<Link> all;
  for (std::int32_t r = 0; r < replicas; ++r)
    for (Link link : links) {
      link.from += r * stages;
      link.to += r * stages;
      all.push_back(link);
    }
  return all;
}

Costs costs_of_units(const Costs& costs, std::int32_t replicas) {
  const auto repeat = [&](auto& list) {
    const auto once = list;
    for (std::int32_t r = 1; r < replicas; ++r) list.insert(list.end(), once.begin(), once.end());
  };
  Costs all = costs;
  repeat(all.stages);
  repeat(all.message_bytes);
  repeat(all.gradient_bytes);
  repeat(all.gradient_sums);
  all.processors *= replicas;
  all.devices_per_process = all.processors > 0 ? 1 : replicas;  // agreements are among the ranks
  return all;
}

TimeLine simulate(const PipelinePlan& plan, std::span<const Link> links, const Costs& costs) {
  if (!plan.is_joint()) return simulate(plan.schedule, links, costs);
  const std::int32_t replicas = plan.ranks.replicas;
  return simulate(plan.joint, links_of_units(links, plan.schedule.stages, replicas),
                  costs_of_units(costs, replicas));
}

double lower_bound_seconds(const PipelinePlan& plan, const Costs& costs) {
  if (!plan.is_joint()) return lower_bound_seconds(plan.schedule, costs.stages);
  double work = 0.0;
  for (const StageCost& stage : costs.stages) work += stage.work();
  return std::max(lower_bound_seconds(costs.stages, plan.joint.micro_batches, true),
                  plan.joint.micro_batches * work * plan.ranks.replicas / plan.ranks.ranks);
}

std::vector<Slots> slots_of(const Graph& graph, const PipelinePlan& plan) {
  const Schedule& schedule = plan.is_joint() ? plan.joint : plan.schedule;
  const std::int32_t replicas = plan.ranks.replicas;
  std::vector<Link> all = links(graph, plan.ranges);
  if (plan.is_joint()) all = links_of_units(all, plan.schedule.stages, replicas);
  // Gradients that stay on the device are copied at once.
  const auto sends_gradients = [&](std::int32_t stage) {
    return std::any_of(all.begin(), all.end(), [&](const Link& l) {
      return l.gradients && l.to == stage && schedule.device(l.from) != schedule.device(stage);
    });
  };
  const bool training = has_backward(schedule);
  const std::vector<std::int32_t> stash =
      training ? slot_peaks(schedule) : forward_slot_peaks(schedule, all);
  const std::vector<std::int32_t> weight = weight_slot_peaks(schedule);
  std::vector<Slots> slots;
  const auto units = static_cast<std::size_t>(plan.unit(replicas, 0));
  for (std::int32_t s = 0; s < schedule.stages; ++s) {
    const int least = training || all.empty() ? 1 : kEvaluationSlots;
    slots.push_back({.stash = std::max(least, stash[static_cast<std::size_t>(s)]),
                     .weight = std::max(1, weight[static_cast<std::size_t>(s)]),
                     .outbox = training && sends_gradients(s) ? kOutboxSlots : 0});
  }
  while (slots.size() < units)
    slots.push_back(slots[slots.size() - static_cast<std::size_t>(schedule.stages)]);
  return slots;
}

std::map<std::pair<int, int>, std::vector<int>> message_order(const PipelinePlan& plan,
                                                              std::span<const Message> all) {
  std::map<std::pair<int, int>, std::vector<int>> order;
  for (const std::vector<PlanEntry>& list : lists_by_rank(plan, links(all)))
    for (const auto& [replica, entry, action] : list) {
      if (!is_send(action.kind)) continue;
      const bool gradient = action.kind == ActionKind::SendGradient;
      const int from = plan.rank_of(replica, action.stage);
      const int to = plan.rank_of(replica, action.peer);
      if (from == to) continue;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].from == action.stage && all[i].to == action.peer && all[i].gradient == gradient)
          order[{from, to}].push_back(message_tag(replica, i, all.size()));
    }
  return order;
}

}  // namespace millrace::pipeline
