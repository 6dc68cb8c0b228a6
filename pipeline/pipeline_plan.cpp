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
  return forward;
}

std::vector<Slots> slots_of(const Graph& graph, const PipelinePlan& plan) {
  const Schedule& schedule = plan.schedule;
  const std::vector<Link> all = links(graph, plan.ranges);
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
  for (std::int32_t s = 0; s < schedule.stages; ++s) {
    const int least = training || all.empty() ? 1 : kEvaluationSlots;
    slots.push_back({.stash = std::max(least, stash[static_cast<std::size_t>(s)]),
                     .weight = std::max(1, weight[static_cast<std::size_t>(s)]),
                     .outbox = training && sends_gradients(s) ? kOutboxSlots : 0});
  }
  return slots;
}

/// A rank's entries are those of this order, and replicas take turns entry by entry.
std::map<std::pair<int, int>, std::vector<int>> message_order(const PipelinePlan& plan,
                                                              std::span<const Message> all) {
  const Schedule& schedule = plan.schedule;
  std::map<std::pair<int, int>, std::vector<int>> order;
  for (const Entry& entry : event_order(schedule, links(all))) {
    const Action& action = schedule.at(entry);
    if (!is_send(action.kind)) continue;
    const bool gradient = action.kind == ActionKind::SendGradient;
    for (std::int32_t r = 0; r < plan.ranks.replicas; ++r) {
      const int from = plan.ranks.rank_of(r, entry.device);
      const int to = plan.ranks.rank_of(r, schedule.device(action.peer));
      if (from == to) continue;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].from == action.stage && all[i].to == action.peer && all[i].gradient == gradient)
          order[{from, to}].push_back(message_tag(r, i, all.size()));
    }
  }
  return order;
}

}  // namespace millrace::pipeline
