// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

/// Seconds of one micro-batch on a stage, and the bytes that it stashes there until its backward.
struct StageCost {
  double forward = 0.0;
  double backward_input = 0.0;
  double backward_weight = 0.0;
  double update = 0.0;
  double stash_bytes = 0.0;
  [[nodiscard]] double seconds(ActionKind kind) const;  ///< of one action; 0 for messages
};

/// A message of n bytes takes latency + n / bandwidth. Messages in one direction between two
/// devices share the bandwidth one after the other, but not the latency.
struct LinkModel {
  double latency = 0.0;
  double bytes_per_second = 1e30;
};

struct Costs {
  std::vector<StageCost> stages;
  std::vector<double> message_bytes;  ///< by link; empty: messages have no bytes
  LinkModel link;
};

struct Interval {
  Action action;
  double begin = 0.0;
  double end = 0.0;
};

/// The simulated times of a schedule. `idle` is a device's time without work between its first and
/// last computation. The bubble is the share of all devices' time, until the end, without compute.
struct TimeLine {
  std::vector<std::vector<Interval>> devices;
  double makespan = 0.0;
  std::vector<double> busy;
  std::vector<double> idle;
  std::vector<double> stash_bytes;  ///< peak, by device
  [[nodiscard]] double bubble() const;
};

/// Replays the lists. Each device runs its entries in order; sends do not block it; the reader of a
/// message waits for it. All weights are updated together, after the last gradient of any device.
/// All-reduces take no time. Errors: Config if the schedule cannot finish.
[[nodiscard]] TimeLine simulate(const Schedule& schedule, std::span<const Link> links,
                                const Costs& costs);

/// Lower bound on the seconds of a step: max_s [ sum_{k<s} (f_k + b_k) + m (f_s + b_s) ] over
/// stages s and k. With a split backward, the stages before s can compute weight gradients while s
/// runs its last micro-batch, so they count with f_k only.
[[nodiscard]] double lower_bound_seconds(std::span<const StageCost> stages,
                                         std::int32_t micro_batches, bool split_backward);
/// Lower bound for a schedule: also at least the work of each device.
[[nodiscard]] double lower_bound_seconds(const Schedule& schedule,
                                         std::span<const StageCost> stages);

}  // namespace millrace::pipeline
