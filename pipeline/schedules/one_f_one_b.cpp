// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedules/schedules.hpp"

namespace millrace::pipeline {
namespace {

// Warm-up forwards, then one backward and one forward in turn.
template <class Warmup>
std::vector<ActionList> alternate(const ScheduleRequest& request, Warmup warmup_of_stage) {
  const std::int32_t m = request.micro_batches;
  std::vector<ActionList> lists(static_cast<std::size_t>(request.stages()));
  for (std::int32_t s = 0; s < request.stages(); ++s) {
    const std::int32_t warmup = warmup_of_stage(s);
    Writer w{lists[static_cast<std::size_t>(s)]};
    for (std::int32_t k = 0; k < std::min(m, warmup); ++k) w.forward(s, k);
    for (std::int32_t k = 0; k < m; ++k) {
      w.backward(s, k);
      if (k + warmup < m) w.forward(s, k + warmup);
    }
  }
  return lists;
}

}  // namespace

// 1F1B (arXiv 2104.04473), with four micro-batches:
//
//   device 0  F0 F1 F2             B0    F3    B1       B2    B3
//   device 1     F0 F1       B0    F2    B1    F3    B2    B3
//   device 2        F0 B0 F1 B1 F2 B2 F3 B3
std::vector<ActionList> one_f_one_b(const ScheduleRequest& request) {
  return alternate(request, [&](std::int32_t stage) {
    const std::int32_t fill = request.stages() - stage;
    return fill + std::min(request.extra_warmup, fill);
  });
}

// The IPU's Grouped schedule, run asynchronously: a warm-up twice as deep, which hides the latency
// of links.
std::vector<ActionList> grouped(const ScheduleRequest& request) {
  return alternate(request, [&](std::int32_t stage) { return 2 * (request.stages() - stage); });
}

// All forwards, then all backwards (arXiv 1811.06965).
std::vector<ActionList> gpipe(const ScheduleRequest& request) {
  return alternate(request, [&](std::int32_t) { return request.micro_batches; });
}

}  // namespace millrace::pipeline
