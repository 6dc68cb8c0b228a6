// SPDX-License-Identifier: Apache-2.0
#include "pipeline/pipeline_plan.hpp"

#include <algorithm>

namespace millrace::pipeline {
namespace {

/// One input gradient is sent while the next is computed.
constexpr int kOutboxSlots = 2;
/// Micro-batches of evaluation in a stage at once, for the same reason.
constexpr int kEvaluationSlots = 2;

}  // namespace

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
