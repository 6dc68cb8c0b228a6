// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "pipeline/schedule/generators/building_block.hpp"

namespace millrace::pipeline {

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

}  // namespace millrace::pipeline
