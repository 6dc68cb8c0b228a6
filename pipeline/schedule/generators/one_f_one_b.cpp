// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// One micro-batch after the other: for shards that only share memory.
//
//   device 0  F0          B0 F1          B1
//   device 1     F0    B0       F1    B1
//   device 2        F0 B0          F1 B1
std::vector<ActionList> sequential(const ScheduleRequest& request) {
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    for (std::int32_t m = 0; m < request.micro_batches; ++m) {
      w.forward(s, m);
      w.backward(s, m);
    }
  });
}

// All forwards, then all backwards (arXiv 1811.06965).
std::vector<ActionList> gpipe(const ScheduleRequest& request) {
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    for (std::int32_t m = 0; m < request.micro_batches; ++m) w.forward(s, m);
    for (std::int32_t m = 0; m < request.micro_batches; ++m) w.backward(s, m);
  });
}

// 1F1B (arXiv 2104.04473): warm-up forwards, then one backward and one forward in turn. With four
// micro-batches:
//
//   device 0  F0 F1 F2             B0    F3    B1       B2    B3
//   device 1     F0 F1       B0    F2    B1    F3    B2    B3
//   device 2        F0 B0 F1 B1 F2 B2 F3 B3
std::vector<ActionList> one_f_one_b(const ScheduleRequest& request) {
  const std::int32_t m = request.micro_batches;
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    const std::int32_t fill = request.stages() - s;
    const std::int32_t warmup = fill + std::min(request.extra_warmup, fill);
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.backward(s, k);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
  });
}

// The IPU's Grouped schedule, run asynchronously: 1F1B with a warm-up twice as deep, which hides
// the latency of links.
std::vector<ActionList> grouped(const ScheduleRequest& request) {
  ScheduleRequest deep = request;
  deep.extra_warmup = request.stages();
  return one_f_one_b(deep);
}

// ZB-H1 (arXiv 2401.10241): as 1F1B, but weight gradients of stage s wait for s more micro-batches
// and so fill what would be the bubble. Every stage then holds as many micro-batches as the first.
std::vector<ActionList> zb_h1(const ScheduleRequest& request) {
  const std::int32_t m = request.micro_batches;
  return written(request.stages(), [&](Writer w, std::int32_t s) {
    const std::int32_t warmup = request.stages() - s;
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.input(s, k);
      if (k >= s) w.weight(s, k - s);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
    for (std::int32_t k = std::max(0, m - s); k < m; ++k) w.weight(s, k);
  });
}

}  // namespace millrace::pipeline
