// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
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
  [[nodiscard]] double work() const { return forward + backward_input + backward_weight; }
  [[nodiscard]] double seconds(ActionKind kind) const;  ///< of one action; 0 for messages
};

/// A message of n bytes takes latency + n / bandwidth. What a device sends shares the bandwidth one
/// after the other, but not the latency.
struct LinkModel {
  double latency = 0.0;
  double bytes_per_second = 1e30;
  double exchanged_per_second = 0.0;  ///< each way, while replicas exchange gradients; 0: the same
  /// The processor of the receiver moves the bytes when it needs them, as between processes of one
  /// machine: that takes the receiver's time.
  bool receiver_copies = false;
  [[nodiscard]] double exchange_rate() const {
    return exchanged_per_second > 0.0 ? exchanged_per_second : bytes_per_second;
  }
  friend bool operator==(const LinkModel&, const LinkModel&) = default;
};

/// Gradients of a stage that replicas add up together.
struct GradientSum {
  double bytes = 0.0;
  double left = 0.0;  ///< share of the last backward pass that comes after they are complete
};

struct Costs {
  std::vector<StageCost> stages;
  std::vector<double> message_bytes;  ///< by link; empty: messages have no bytes
  LinkModel link;
  std::int32_t replicas = 1;           ///< of the pipeline, among which gradients are all-reduced
  std::vector<double> gradient_bytes;  ///< by stage; empty: all-reduces take no time
  /// By stage, in the order in which they are complete; empty: one sum, after the last backward.
  std::vector<std::vector<GradientSum>> gradient_sums;
  double sum_bytes_per_second = 1e30;  ///< read and written where gradients are added up
  /// How many devices of a pipeline can compute at the same time: more of them share the time
  /// equally. Less than 1 where replicas take turns, too. 0: all of them.
  double processors = 0.0;
  /// Devices that follow each other in a process run one action at a time between them.
  std::int32_t devices_per_process = 1;
  /// How often in a step all processes wait for each other: the first time before the update.
  std::int32_t agreements = 0;
};

/// Seconds of an all-reduce of n bytes over R replicas that send directly to each other
/// (pipeline/all_reduce.hpp): each sends and receives R - 1 messages of n / R bytes at once, twice,
/// and adds up R parts of n / R bytes, at `sum_bytes_per_second` read and written.
[[nodiscard]] double all_reduce_seconds(const LinkModel& link, std::int32_t replicas, double bytes,
                                        double sum_bytes_per_second = 1e30);

/// Seconds until all processes know of each other: up and down a binomial tree (comm/world.hpp).
[[nodiscard]] double agreement_seconds(const LinkModel& link, std::int32_t processes);

/// What devices send, each over a link of its own, one message after the other.
class Wires {
 public:
  explicit Wires(const LinkModel& link) : link_(link) {}
  /// When a message arrives that is started at `when`, after all messages of earlier calls.
  double arrival(std::int32_t from, double bytes, double when) {
    return arrival(from, bytes, when, link_.bytes_per_second);
  }
  /// When a device has all of `sums`, each of which it starts when it is complete in the backward
  /// pass from `begin` to `end`: as all_reduce_seconds(), with messages that follow each other.
  double reduced(std::int32_t device, std::span<const GradientSum> sums, double begin, double end,
                 const Costs& costs);

 private:
  double arrival(std::int32_t from, double bytes, double when, double rate);

  LinkModel link_;
  std::map<std::int32_t, double> free_;  ///< by sender: when it has sent everything
};

struct Interval {
  Action action;
  double begin = 0.0;
  double end = 0.0;
};

/// The simulated times of a schedule. `busy` counts the time that a device takes for its work: with
/// a core of its own or a part of one, but without the turns of other devices of its process.
/// `idle` is a device's time without work between its first and last computation. The bubble is the
/// share of all devices' time, until the end, without compute.
struct TimeLine {
  std::vector<std::vector<Interval>> devices;
  double makespan = 0.0;
  std::vector<double> busy;
  std::vector<double> idle;
  std::vector<double> stash_bytes;  ///< peak, by device
  [[nodiscard]] double bubble() const;
};

/// Replays the lists. Each device runs its entries in order; sends do not block it; the reader of a
/// message waits for it. Gradients are added up as soon as they are complete, while a device goes
/// on computing, unless its processor copies the messages. All weights are updated together, after
/// the last gradient of any device. Errors: Config if the schedule cannot finish.
[[nodiscard]] TimeLine simulate(const Schedule& schedule, std::span<const Link> links,
                                const Costs& costs);

/// Lower bound on the seconds of a step: max_s [ sum_{k<s} (f_k + b_k) + m (f_s + b_s) ] over
/// stages s and k. With a split backward, the stages before s can compute weight gradients while s
/// runs its last micro-batch, so they count with f_k only.
[[nodiscard]] double lower_bound_seconds(std::span<const StageCost> stages,
                                         std::int32_t micro_batches, bool split_backward);
/// Lower bound for every schedule with these stages on these devices, with or without a split
/// backward: also at least the work of each device.
[[nodiscard]] double lower_bound_seconds(const Schedule& schedule,
                                         std::span<const StageCost> stages);

}  // namespace millrace::pipeline
