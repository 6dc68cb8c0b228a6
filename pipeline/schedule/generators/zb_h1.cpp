// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// ZB-H1 (arXiv 2401.10241): as 1F1B, but weight gradients of stage s wait for s more micro-batches
// and so fill what would be the bubble. Every stage then holds as many micro-batches as the first.
std::vector<ActionList> zb_h1(const ScheduleRequest& request) {
  const std::int32_t m = request.micro_batches;
  std::vector<ActionList> lists(static_cast<std::size_t>(request.stages()));
  for (std::int32_t s = 0; s < request.stages(); ++s) {
    const std::int32_t warmup = request.stages() - s;
    Writer w{lists[static_cast<std::size_t>(s)]};
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.input(s, k);
      if (k >= s) w.weight(s, k - s);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
    for (std::int32_t k = std::max(0, m - s); k < m; ++k) w.weight(s, k);
  }
  return lists;
}

}  // namespace millrace::pipeline
