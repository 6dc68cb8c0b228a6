// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "pipeline/schedule/generators/rules.hpp"

namespace millrace::pipeline {

// Interleaved 1F1B whose backward passes are split as in ZB-H1 (arXiv 2401.10241): input gradients
// at once, weight gradients of device d after d more input gradients. An input gradient takes half
// as long as a whole backward, so that the warm-up is shorter by one forward per device.
std::vector<ActionList> looped_zb(const ScheduleRequest& request) {
  const std::int32_t devices = request.devices;
  const LoopedOrder order{devices, request.chunks};
  const std::int32_t total = order.total(request.micro_batches);
  std::vector<ActionList> lists(static_cast<std::size_t>(devices));
  for (std::int32_t d = 0; d < devices; ++d) {
    const std::int32_t warmup = std::min(total, (request.chunks - 1) * devices + (devices - 1 - d));
    Writer w{lists[static_cast<std::size_t>(d)]};
    for (std::int32_t k = 0; k < total + warmup; ++k) {
      if (k < total) w.forward(order.forward_stage(d, k), order.micro_batch(k));
      if (k < warmup) continue;
      const std::int32_t b = k - warmup;
      w.input(order.backward_stage(d, b), order.micro_batch(b));
      if (b >= d) w.weight(order.backward_stage(d, b - d), order.micro_batch(b - d));
    }
    for (std::int32_t b = std::max(0, total - d); b < total; ++b)
      w.weight(order.backward_stage(d, b), order.micro_batch(b));
  }
  return lists;
}

}  // namespace millrace::pipeline
