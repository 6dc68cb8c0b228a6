// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/replay.hpp"

#include <algorithm>
#include <tuple>

namespace millrace::pipeline {

Readiness::Readiness(std::int32_t stages, std::int32_t micro_batches, std::span<const Link> links)
    : micro_batches_(micro_batches),
      before_(static_cast<std::size_t>(stages)),
      after_(static_cast<std::size_t>(stages)),
      behind_(static_cast<std::size_t>(stages)),
      done_(static_cast<std::size_t>(stages) * static_cast<std::size_t>(micro_batches)) {
  for (const Link& link : links) {
    if (link.activations) before_[static_cast<std::size_t>(link.to)].push_back(link.from);
    if (link.gradients) after_[static_cast<std::size_t>(link.from)].push_back(link.to);
    behind_[static_cast<std::size_t>(link.from)].push_back(link.to);
  }
}

const Readiness::Time& Readiness::end_of(ActionKind kind, std::int32_t stage,
                                         std::int32_t micro_batch) const {
  const Done& done = done_[at(stage, micro_batch)];
  if (kind == ActionKind::Forward) return done.forward;
  return kind == ActionKind::BackwardInput ? done.input : done.weight;
}

Readiness::Time Readiness::ready(const Action& action) const {
  Time latest = 0;
  const auto needs = [&](ActionKind kind, std::int32_t stage) {
    const Time& end = end_of(kind, stage, action.micro_batch);
    if (!end) latest.reset();
    if (latest) latest = std::max(*latest, *end);
  };
  switch (action.kind) {
    case ActionKind::Forward:
      for (const std::int32_t stage : before(action.stage)) needs(ActionKind::Forward, stage);
      break;
    case ActionKind::BackwardWeight:
      needs(ActionKind::BackwardInput, action.stage);
      break;
    default:
      needs(ActionKind::Forward, action.stage);
      for (const std::int32_t stage : behind(action.stage)) needs(ActionKind::BackwardInput, stage);
  }
  return latest;
}

void Readiness::finish(const Action& action, std::int64_t end) {
  Done& done = done_[at(action.stage, action.micro_batch)];
  if (action.kind == ActionKind::Forward) done.forward = end;
  if (makes_input_gradient(action.kind)) done.input = end;
  if (ends_micro_batch(action.kind)) done.weight = end;
}

bool walk(std::span<const std::vector<Action>> queues,
          std::span<const std::int32_t> device_of_queue, std::int32_t stages,
          std::int32_t micro_batches, std::span<const Link> links,
          const std::function<void(std::size_t queue, const Action&)>& visit) {
  Readiness readiness(stages, micro_batches, links);
  std::vector<std::size_t> head(queues.size());
  const std::int32_t last = device_of_queue.empty()
                                ? 0
                                : *std::max_element(device_of_queue.begin(), device_of_queue.end());
  std::vector<std::int64_t> free(static_cast<std::size_t>(last) + 1);
  // Order of events: begin, backward before forward, micro-batch, queue.
  using Key = std::tuple<std::int64_t, bool, std::int32_t, std::size_t>;
  while (true) {
    std::optional<Key> best;
    bool all_finished = true;
    for (std::size_t q = 0; q < queues.size(); ++q) {
      if (head[q] == queues[q].size()) continue;
      all_finished = false;
      const Action& action = queues[q][head[q]];
      const std::optional<std::int64_t> ready = readiness.ready(action);
      if (!ready) continue;
      const auto device = static_cast<std::size_t>(device_of_queue[q]);
      const Key key{std::max(free[device], *ready), action.kind == ActionKind::Forward,
                    action.micro_batch, q};
      if (!best || key < *best) best = key;
    }
    if (!best) return all_finished;
    const std::size_t q = std::get<3>(*best);
    const Action& action = queues[q][head[q]++];
    const std::int64_t end = std::get<0>(*best) + (action.kind == ActionKind::Backward ? 2 : 1);
    free[static_cast<std::size_t>(device_of_queue[q])] = end;
    readiness.finish(action, end);
    visit(q, action);
  }
}

}  // namespace millrace::pipeline
