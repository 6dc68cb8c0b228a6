// SPDX-License-Identifier: Apache-2.0
#include "pipeline/replay.hpp"

#include <algorithm>
#include <tuple>

namespace millrace::pipeline {
namespace {

constexpr std::uint8_t kForwardDone = 1;
constexpr std::uint8_t kInputDone = 2;
constexpr std::uint8_t kWeightDone = 4;

std::uint8_t bits_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::Forward:
      return kForwardDone;
    case ActionKind::BackwardInput:
      return kInputDone;
    case ActionKind::BackwardWeight:
      return kWeightDone;
    case ActionKind::Backward:
      return kInputDone | kWeightDone;
    default:
      return 0;
  }
}

}  // namespace

Progress::Progress(std::int32_t stages, std::int32_t micro_batches, std::span<const Link> links)
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

bool Progress::is_done(ActionKind kind, std::int32_t stage, std::int32_t micro_batch) const {
  const std::uint8_t bits = bits_of(kind);
  return (done_[at(stage, micro_batch)] & bits) == bits;
}

bool Progress::is_ready(const Action& action) const {
  const auto all = [&](std::span<const std::int32_t> stages, ActionKind kind) {
    return std::all_of(stages.begin(), stages.end(), [&](std::int32_t stage) {
      return is_done(kind, stage, action.micro_batch);
    });
  };
  if (action.kind == ActionKind::Forward) return all(before(action.stage), ActionKind::Forward);
  if (action.kind == ActionKind::BackwardWeight)
    return is_done(ActionKind::BackwardInput, action.stage, action.micro_batch);
  return is_done(ActionKind::Forward, action.stage, action.micro_batch) &&
         all(behind(action.stage), ActionKind::BackwardInput);
}

void Progress::finish(const Action& action) {
  std::uint8_t& done = done_[at(action.stage, action.micro_batch)];
  done = static_cast<std::uint8_t>(done | bits_of(action.kind));
}

namespace {

/// Computes the time at which everything that an action needs is done.
class Clock {
 public:
  Clock(const Progress& progress, std::int32_t micro_batches, std::size_t stages)
      : progress_(progress), micro_batches_(static_cast<std::size_t>(micro_batches)) {
    forward_.resize(stages * micro_batches_);
    input_.resize(forward_.size());
  }
  [[nodiscard]] std::int64_t ready(const Action& a) const {
    std::int64_t time = 0;
    if (a.kind == ActionKind::Forward) {
      for (const std::int32_t s : progress_.before(a.stage))
        time = std::max(time, forward_[at(s, a)]);
      return time;
    }
    if (a.kind == ActionKind::BackwardWeight) return input_[at(a.stage, a)];
    time = forward_[at(a.stage, a)];
    for (const std::int32_t s : progress_.behind(a.stage)) time = std::max(time, input_[at(s, a)]);
    return time;
  }
  void finish(const Action& a, std::int64_t end) {
    if (a.kind == ActionKind::Forward) forward_[at(a.stage, a)] = end;
    if (makes_input_gradient(a.kind)) input_[at(a.stage, a)] = end;
  }

 private:
  [[nodiscard]] std::size_t at(std::int32_t stage, const Action& a) const {
    return static_cast<std::size_t>(stage) * micro_batches_ +
           static_cast<std::size_t>(a.micro_batch);
  }
  const Progress& progress_;
  std::size_t micro_batches_;
  std::vector<std::int64_t> forward_;
  std::vector<std::int64_t> input_;
};

}  // namespace

bool walk(std::span<const std::vector<Action>> queues,
          std::span<const std::int32_t> device_of_queue, std::int32_t stages,
          std::int32_t micro_batches, std::span<const Link> links,
          const std::function<void(std::size_t queue, const Action&)>& visit) {
  Progress progress(stages, micro_batches, links);
  Clock clock(progress, micro_batches, static_cast<std::size_t>(stages));
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
      if (!progress.is_ready(action)) continue;
      const auto device = static_cast<std::size_t>(device_of_queue[q]);
      const Key key{std::max(free[device], clock.ready(action)), action.kind == ActionKind::Forward,
                    action.micro_batch, q};
      if (!best || key < *best) best = key;
    }
    if (!best) return all_finished;
    const std::size_t q = std::get<3>(*best);
    const Action& action = queues[q][head[q]++];
    const std::int64_t end = std::get<0>(*best) + (action.kind == ActionKind::Backward ? 2 : 1);
    free[static_cast<std::size_t>(device_of_queue[q])] = end;
    progress.finish(action);
    clock.finish(action, end);
    visit(q, action);
  }
}

}  // namespace millrace::pipeline
