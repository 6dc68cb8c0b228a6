// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// Interleaved 1F1B (arXiv 2104.04473): 1F1B over several chunks per device. With v chunks the
// bubble is v times smaller, and there are v times as many messages.
std::vector<ActionList> looped(const ScheduleRequest& request) {
  const std::int32_t devices = request.devices;
  const LoopedOrder order{devices, request.chunks};
  const std::int32_t total = order.total(request.micro_batches);
  std::vector<ActionList> lists(static_cast<std::size_t>(devices));
  for (std::int32_t d = 0; d < devices; ++d) {
    const std::int32_t warmup =
        std::min(total, (request.chunks - 1) * devices + 2 * (devices - 1 - d));
    Writer w{lists[static_cast<std::size_t>(d)]};
    for (std::int32_t k = 0; k < total + warmup; ++k) {
      if (k < total) w.forward(order.forward_stage(d, k), order.micro_batch(k));
      if (k < warmup) continue;
      const std::int32_t b = k - warmup;
      w.backward(order.backward_stage(d, b), order.micro_batch(b));
    }
  }
  return lists;
}

}  // namespace millrace::pipeline
