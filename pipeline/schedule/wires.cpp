// SPDX-License-Identifier: Apache-2.0
//
// How long messages take.
#include <algorithm>
#include <bit>
#include <deque>
#include <limits>

#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

double Wires::arrival(std::int32_t from, double bytes, double when, double rate) {
  double& free = free_[from];
  free = std::max(free, when) + bytes / rate;
  return free + link_.latency;
}

double Wires::reduced(std::int32_t device, std::span<const GradientSum> sums, double begin,
                      double end, const Costs& costs) {
  struct Gathering {
    double when;
    double part;
  };
  std::deque<Gathering> gathers;
  double done = 0.0;
  // All replicas do the same at the same time, so what one sends is also what it receives.
  const auto exchange = [&](double part, double when) {
    done = arrival(device, (costs.replicas - 1) * part, when, link_.exchange_rate());
  };
  const auto gather_until = [&](double when) {
    for (; !gathers.empty() && gathers.front().when <= when; gathers.pop_front())
      exchange(gathers.front().part, gathers.front().when);
  };
  for (const GradientSum& sum : sums) {
    const double complete = end - sum.left * (end - begin);
    const double part = sum.bytes / costs.replicas;
    gather_until(complete);
    exchange(part, complete);
    gathers.push_back({done + (costs.replicas + 1) * part / costs.sum_bytes_per_second, part});
  }
  gather_until(std::numeric_limits<double>::infinity());
  return done;
}

double all_reduce_seconds(const LinkModel& link, std::int32_t replicas, double bytes,
                          double sum_bytes_per_second) {
  if (replicas < 2) return 0.0;
  const double part = bytes / replicas;
  return 2.0 * (link.latency + (replicas - 1) * part / link.exchange_rate()) +
         (replicas + 1) * part / sum_bytes_per_second;
}

double agreement_seconds(const LinkModel& link, std::int32_t processes) {
  const auto depth = std::bit_width(static_cast<std::uint32_t>(std::max(processes, 1) - 1));
  return 2.0 * static_cast<double>(depth) * link.latency;
}

}  // namespace millrace::pipeline
