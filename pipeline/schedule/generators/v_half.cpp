// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/building_block.hpp"

namespace millrace::pipeline {

// V-Half (arXiv 2405.15362): half of 1F1B's memory with half of its bubble.
std::vector<ActionList> v_half(const ScheduleRequest& request) {
  return repeat({.travel_up = 2,
                 .pause_between = request.devices % 2 == 0 ? 3 : 0,
                 .pause_backward = 1,
                 .most_held = 2 * ((request.devices + 2) / 2)},
                request);
}

}  // namespace millrace::pipeline
