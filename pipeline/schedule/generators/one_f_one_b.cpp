// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// 1F1B (arXiv 2104.04473): warm-up forwards, then one backward and one forward in turn. With four
// micro-batches:
//
//   device 0  F0 F1 F2             B0    F3    B1       B2    B3
//   device 1     F0 F1       B0    F2    B1    F3    B2    B3
//   device 2        F0 B0 F1 B1 F2 B2 F3 B3
std::vector<ActionList> one_f_one_b(const ScheduleRequest& request) {
  const std::int32_t m = request.micro_batches;
  std::vector<ActionList> lists(static_cast<std::size_t>(request.stages()));
  for (std::int32_t s = 0; s < request.stages(); ++s) {
    const std::int32_t fill = request.stages() - s;
    const std::int32_t warmup = fill + std::min(request.extra_warmup, fill);
    Writer w{lists[static_cast<std::size_t>(s)]};
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.backward(s, k);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
  }
  return lists;
}

}  // namespace millrace::pipeline
