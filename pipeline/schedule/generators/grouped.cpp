// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// The IPU's Grouped schedule, run asynchronously: 1F1B with a warm-up twice as deep, which hides
// the latency of links.
std::vector<ActionList> grouped(const ScheduleRequest& request) {
  ScheduleRequest deep = request;
  deep.extra_warmup = request.stages();
  return one_f_one_b(deep);
}

}  // namespace millrace::pipeline
