// SPDX-License-Identifier: Apache-2.0
//
// The list scheduler below `generate_auto`: one pass through all events in order of time, in which
// every device takes what a rule prefers among the actions that can begin.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/auto_schedule.hpp"

namespace millrace::pipeline {

using Caps = std::vector<std::int32_t>;

/// An AutoRequest, checked and with nothing left out. Errors: as generate_auto.
class ScheduleProblem {
 public:
  explicit ScheduleProblem(const AutoRequest& request);

  [[nodiscard]] std::int32_t devices() const { return static_cast<std::int32_t>(stages_on.size()); }
  [[nodiscard]] std::int32_t device(std::int32_t stage) const {
    return device_of[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const StageCost& cost(std::int32_t stage) const {
    return costs[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] double bytes_of_micro_batch(std::size_t device) const {
    double sum = 0.0;
    for (const std::int32_t s : stages_on[device]) sum += cost(s).stash_bytes;
    return sum;
  }
  [[nodiscard]] double work(std::int32_t s) const {
    return cost(s).forward + cost(s).backward_input + cost(s).backward_weight;
  }
  [[nodiscard]] double seconds(ActionKind kind, std::int32_t s) const {
    if (kind == ActionKind::Forward) return cost(s).forward;
    if (kind == ActionKind::BackwardInput) return cost(s).backward_input;
    if (kind == ActionKind::BackwardWeight) return cost(s).backward_weight;
    return cost(s).backward_input + cost(s).backward_weight;
  }
  [[nodiscard]] ActionKind backward() const {
    return split ? ActionKind::BackwardInput : ActionKind::Backward;
  }
  [[nodiscard]] double latency(const Link& l) const {
    return device(l.from) == device(l.to) ? 0.0 : link.latency;
  }

  std::vector<StageCost> costs;
  std::int32_t stages;
  std::int32_t micro_batches;
  bool split;
  std::vector<std::int32_t> device_of;
  std::vector<Link> links;
  LinkModel link;
  std::vector<double> message_bytes;
  Caps caps;  ///< most micro-batches held, by stage
  std::vector<double> byte_limit;
  std::vector<std::vector<std::int32_t>> stages_on;  ///< by device
};

/// What a device takes among actions that can begin.
struct Rule {
  enum class Order {
    ByKind,  ///< lowest `ranks` first, of equals the smaller micro-batch
    InTurn,  ///< a forward after a backward, and a backward after a forward
    ByPath,  ///< the longest way to the end of the step first
  };
  Order order = Order::ByKind;
  std::array<int, 3> ranks = {1, 0, 2};  ///< of forward, backward (input), weight
  /// ByPath: share of the longest device's work by which an earlier micro-batch goes before a later
  /// one; 0 runs forwards as far ahead as there is room, 1 keeps to the order of micro-batches.
  double age = 0.0;
  /// How long a device waits for something better that is on its way, in durations of what it could
  /// do meanwhile.
  double patience = 0.0;
};

/// Seconds from the begin of an action to the end of its micro-batch, on empty devices.
class Paths {
 public:
  explicit Paths(const ScheduleProblem& problem);
  [[nodiscard]] double forward(std::int32_t s) const {
    return forward_[static_cast<std::size_t>(s)];
  }
  [[nodiscard]] double backward(std::int32_t s) const {
    return backward_[static_cast<std::size_t>(s)];
  }

 private:
  std::vector<double> forward_;
  std::vector<double> backward_;
};

/// A complete schedule, compute only, in which no stage holds more than its cap (at least 1) and no
/// device more than its bytes. Always finishes.
[[nodiscard]] Schedule list_schedule(const ScheduleProblem& problem, const Paths& paths,
                                     const Rule& rule, const Caps& caps);

}  // namespace millrace::pipeline
