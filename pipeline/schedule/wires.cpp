// SPDX-License-Identifier: Apache-2.0
//
// How long messages take.
#include <algorithm>
#include <bit>

#include "pipeline/schedule/simulate.hpp"

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

double all_reduce_seconds(const LinkModel& link, std::int32_t replicas, double bytes,
                          double sum_bytes_per_second) {
  if (replicas < 2) return 0.0;
  const double part = bytes / replicas;
  const double message = part / link.bytes_per_second;
  const bool answers = part > link.eager_bytes && !link.receiver_copies;
  const double answered = answers ? 2.0 * link.latency + message : 0.0;
  return 2.0 * (link.latency + (replicas - 1) * message + answered) +
         (replicas + 1) * part / sum_bytes_per_second;
}

double agreement_seconds(const LinkModel& link, std::int32_t processes) {
  const auto depth = std::bit_width(static_cast<std::uint32_t>(std::max(processes, 1) - 1));
  return 2.0 * static_cast<double>(depth) * link.latency;
}

}  // namespace millrace::pipeline
