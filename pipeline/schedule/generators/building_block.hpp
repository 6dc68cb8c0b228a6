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
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

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

/// The lists by device. The limit must suffice for the block in order.
[[nodiscard]] std::vector<ActionList> repeat(const BuildingBlock& block,
                                             const ScheduleRequest& request);

}  // namespace millrace::pipeline
