// SPDX-License-Identifier: Apache-2.0
#include "pipeline/schedule/wires.hpp"

#include <algorithm>

namespace millrace::pipeline {

double Wires::occupy(std::int32_t from, double when, double seconds) {
  Queue& queue = queues_[from];
  const double free = queue.empty() ? 0.0 : queue.back().left;
  queue.push_back({when, std::max(free, when) + seconds});
  return queue.back().left;
}

double Wires::arrival(std::int32_t from, std::int32_t to, double bytes, double when) {
  // When a few bytes leave that are queued then.
  const auto leaves = [&](std::int32_t device, double queued) {
    const Queue& queue = queues_[device];
    for (auto sent = queue.rbegin(); sent != queue.rend(); ++sent)
      if (sent->queued <= queued) return std::max(sent->left, queued);
    return queued;
  };
  if (bytes > link_.eager_bytes) {
    const double announced = leaves(from, when) + link_.latency;
    when = leaves(to, announced) + link_.latency;
  }
  return occupy(from, when, bytes / link_.bytes_per_second) + link_.latency;
}

}  // namespace millrace::pipeline
