// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/building_block.hpp"

namespace millrace::pipeline {

// V-ZB (arXiv 2405.15362): as much memory as 1F1B and no bubble but the first micro-batch's way
// down.
std::vector<ActionList> v_zb(const ScheduleRequest& request) {
  return repeat({.travel_up = 5, .most_held = 2 * request.devices}, request);
}

}  // namespace millrace::pipeline
