// SPDX-License-Identifier: Apache-2.0
//
// Schedules with controllable memory (Qi et al., arXiv 2405.15362) on a V of stages.
//
// A building block is the passes of one micro-batch on all devices. Repeated every six ticks
// without collisions it is a schedule, and how long a block keeps a micro-batch on a device decides
// how many are held. A tick is a pass of one stage; a device works six per micro-batch: forward,
// input gradient and weight gradient, on the way down and up. Three devices, travel 1, no pauses:
//
//   device 0  F . . . . F B . . . . B
//   device 1  . F . . F . . B . . B .
//   device 2  . . F F . . . . B B . .
//
// From the repeated blocks the passes are squeezed together: a device does the next pass of its
// order that can begin, and weight gradients where nothing else can, without ever holding more than
// the block's limit.

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "pipeline/schedule/replay.hpp"

namespace millrace::pipeline {
namespace {

/// In which order a device takes what can begin.
enum class Squeeze {
  InOrder,    ///< never a forward or input gradient before the one that precedes it in the blocks
  OutOfOrder  ///< the first one that can begin and leaves room for those before it
};

struct BuildingBlock {
  /// Ticks from one device to the next, on the way down and up; the same for backwards.
  std::int32_t travel_down = 1;
  std::int32_t travel_up = 1;
  /// Ticks between the passes of one device where the V turns: of the forward, from forward to
  /// backward, and of the backward.
  std::int32_t pause_forward = 0;
  std::int32_t pause_between = 0;
  std::int32_t pause_backward = 0;
  /// Stages' micro-batches that a device may hold: a micro-batch on both stages counts twice.
  std::int32_t most_held = 2;
  Squeeze squeeze = Squeeze::OutOfOrder;
};

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

/// The lists by device. The limit must suffice for the block in order.
std::vector<ActionList> repeat(const BuildingBlock& block, const ScheduleRequest& request) {
  return Squeezer(block, request).run();
}

}  // namespace

// V-Min (arXiv 2405.15362): the least memory, a third of 1F1B's, with two thirds of its bubble.
// Blocks travel without delay; whether they collide depends on the devices modulo 3, and so does
// the pause that keeps them apart.
std::vector<ActionList> v_min(const ScheduleRequest& request) {
  constexpr std::array<std::int32_t, 3> kPause = {2, 0, 4};
  const auto remainder = static_cast<std::size_t>(request.devices % 3);
  return repeat({.pause_between = kPause[remainder],
                 .most_held = 2 * ((request.devices + 4) / 3),
                 .squeeze = remainder == 1 ? Squeeze::InOrder : Squeeze::OutOfOrder},
                request);
}

// V-Half (arXiv 2405.15362): half of 1F1B's memory with half of its bubble.
std::vector<ActionList> v_half(const ScheduleRequest& request) {
  return repeat({.travel_up = 2,
                 .pause_between = request.devices % 2 == 0 ? 3 : 0,
                 .pause_backward = 1,
                 .most_held = 2 * ((request.devices + 2) / 2)},
                request);
}

// V-ZB (arXiv 2405.15362): as much memory as 1F1B and no bubble but the first micro-batch's way
// down.
std::vector<ActionList> v_zb(const ScheduleRequest& request) {
  return repeat({.travel_up = 5, .most_held = 2 * request.devices}, request);
}

}  // namespace millrace::pipeline
