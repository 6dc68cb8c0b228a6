// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/schedule.hpp"

namespace millrace::pipeline {

/// Seconds that one micro-batch takes on a stage, and bytes it leaves there until its backward.
struct StageCost {
  double forward = 0.0;
  double backward_input = 0.0;
  double backward_weight = 0.0;
  double update = 0.0;
  double stash_bytes = 0.0;
};

/// Seconds of a message of n bytes: latency + n / bandwidth. Messages of one direction between two
/// devices wait for each other only for their bytes, not for the latency.
struct LinkModel {
  double latency = 0.0;
  double bytes_per_second = 1e30;
};

struct Costs {
  std::vector<StageCost> stages;
  std::vector<double> message_bytes;  ///< by link; empty: nothing
  LinkModel link;
};

struct Interval {
  Action action;
  double begin = 0.0;
  double end = 0.0;
};

/// What a schedule would do. `idle` is a device's time without work between its first and its last
/// action; the bubble is the share of all devices' time until the end in which they compute
/// nothing.
struct TimeLine {
  std::vector<std::vector<Interval>> devices;
  double makespan = 0.0;
  std::vector<double> busy;
  std::vector<double> idle;
  std::vector<double> stash_bytes;  ///< peak, by device
  [[nodiscard]] double bubble() const;
};

/// Replays the lists: each device takes its entries in order, sends do not hold it up, and what
/// reads a message waits for it. Reductions take no time. Errors: Config when it cannot finish.
[[nodiscard]] TimeLine simulate(const Schedule& schedule, std::span<const Link> links,
                                const Costs& costs);

/// Seconds of a step when devices move in lock-step, as IPUs do: Sequential, Grouped or
/// Interleaved, with stages of equal cost.
[[nodiscard]] double lock_step_seconds(std::string_view schedule, std::int32_t stages,
                                       std::int32_t micro_batches, double forward, double backward);

/// What no schedule with one queue a device can beat:
/// max_s [ sum_{k<s} (f_k + b_k) + m (f_s + b_s) ], with s and k counting through
/// stages whose backward is one action.
[[nodiscard]] double lower_bound_seconds(std::span<const StageCost> stages,
                                         std::int32_t micro_batches);
/// The same for a schedule: no device can do its own work faster, either; and where backward is
/// split, what comes before a stage is its forwards alone.
[[nodiscard]] double lower_bound_seconds(const Schedule& schedule,
                                         std::span<const StageCost> stages);

}  // namespace millrace::pipeline
