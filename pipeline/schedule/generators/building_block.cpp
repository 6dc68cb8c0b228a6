// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/building_block.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "pipeline/schedule/replay.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::int32_t kTicksPerMicroBatch = 6;

struct Pass {
  std::int32_t begin = 0;  // tick
  Action action;
};

/// Forwards and input gradients of all micro-batches by device, in the order of the blocks.
std::vector<ActionList> passes_in_order(const BuildingBlock& block,
                                        const ScheduleRequest& request) {
  const std::int32_t last = request.devices - 1;
  const std::int32_t stages = 2 * request.devices;
  const std::int32_t forward_up = last * block.travel_down + 1 + block.pause_forward;
  const std::int32_t backward_down = forward_up + last * block.travel_up + 1 + block.pause_between;
  const std::int32_t backward_up =
      backward_down + last * block.travel_down + 1 + block.pause_backward;
  std::vector<ActionList> lists;
  for (std::int32_t d = 0; d <= last; ++d) {
    const std::int32_t down = d * block.travel_down;
    const std::int32_t up = (last - d) * block.travel_up;
    const std::array<Pass, 4> one = {
        Pass{down, {ActionKind::Forward, d}},
        Pass{forward_up + up, {ActionKind::Forward, stages - 1 - d}},
        Pass{backward_down + down, {ActionKind::BackwardInput, stages - 1 - d}},
        Pass{backward_up + up, {ActionKind::BackwardInput, d}}};
    std::vector<Pass> all;
    for (std::int32_t m = 0; m < request.micro_batches; ++m)
      for (Pass pass : one) {
        pass.begin += m * kTicksPerMicroBatch;
        pass.action.micro_batch = m;
        all.push_back(pass);
      }
    std::sort(all.begin(), all.end(),
              [](const Pass& a, const Pass& b) { return a.begin < b.begin; });
    ActionList& list = lists.emplace_back();
    for (const Pass& pass : all) list.push_back(pass.action);
  }
  return lists;
}

/// All devices, tick by tick.
class Squeezer {
 public:
  Squeezer(const BuildingBlock& block, const ScheduleRequest& request)
      : block_(block),
        readiness_(2 * request.devices, request.micro_batches, chain(2 * request.devices)) {
    for (ActionList& list : passes_in_order(block, request)) {
      left_ += list.size() + list.size() / 2;  // every input gradient has a weight gradient
      devices_.emplace_back().order = std::move(list);
    }
  }

  std::vector<ActionList> run() && {
    while (left_ > 0) {
      std::vector<std::pair<Device*, Action>> begun;
      for (Device& device : devices_)
        if (const std::optional<Action> action = take(device)) begun.emplace_back(&device, *action);
      MILLRACE_ASSERT(!begun.empty());
      for (auto& [device, action] : begun) finish(*device, action);
      left_ -= begun.size();
    }
    std::vector<ActionList> lists;
    for (Device& device : devices_) lists.push_back(std::move(device.list));
    return lists;
  }

 private:
  struct Device {
    ActionList order;            // forwards and input gradients to come
    std::deque<Action> weights;  // weight gradients that can begin
    std::int32_t held = 0;
    ActionList list;
  };

  /// Whether the passes before the one at `index` can still be done in order after it, when weight
  /// gradients are done as soon as they can be.
  [[nodiscard]] bool leaves_room(const Device& device, std::size_t index) const {
    const auto change = [](const Action& a) { return a.kind == ActionKind::Forward ? 1 : -1; };
    std::int32_t held = device.held - static_cast<std::int32_t>(device.weights.size()) +
                        change(device.order[index]);
    if (held > block_.most_held) return false;
    for (std::size_t i = 0; i < index; ++i) {
      held += change(device.order[i]);
      if (held > block_.most_held) return false;
    }
    return true;
  }

  /// The pass of `order` that is taken next; nothing when none can begin.
  [[nodiscard]] std::optional<std::size_t> next_pass(const Device& device) const {
    std::vector<std::pair<ActionKind, std::int32_t>> seen;  // each stage keeps its own order
    for (std::size_t i = 0; i < device.order.size() && seen.size() < 4; ++i) {
      const Action& a = device.order[i];
      if (std::find(seen.begin(), seen.end(), std::pair{a.kind, a.stage}) != seen.end()) continue;
      seen.emplace_back(a.kind, a.stage);
      if (readiness_.is_ready(a) && leaves_room(device, i)) return i;
      if (block_.squeeze == Squeeze::InOrder) break;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Action> take(Device& device) {
    std::optional<std::size_t> next = next_pass(device);
    const bool full = device.held >= block_.most_held;
    if (next && full && device.order[*next].kind == ActionKind::Forward) next.reset();
    if (next) {
      const Action action = device.order[*next];
      device.order.erase(device.order.begin() + static_cast<std::ptrdiff_t>(*next));
      return action;
    }
    if (device.weights.empty()) return std::nullopt;
    const Action action = device.weights.front();
    device.weights.pop_front();
    return action;
  }

  void finish(Device& device, const Action& action) {
    device.list.push_back(action);
    readiness_.finish(action);
    if (action.kind == ActionKind::Forward) ++device.held;
    if (action.kind == ActionKind::BackwardWeight) --device.held;
    if (action.kind == ActionKind::BackwardInput)
      device.weights.push_back({ActionKind::BackwardWeight, action.stage, action.micro_batch});
  }

  BuildingBlock block_;
  Readiness readiness_;
  std::vector<Device> devices_;
  std::size_t left_ = 0;
};

}  // namespace

std::vector<ActionList> repeat(const BuildingBlock& block, const ScheduleRequest& request) {
  return Squeezer(block, request).run();
}

}  // namespace millrace::pipeline
