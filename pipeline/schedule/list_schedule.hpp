// SPDX-License-Identifier: Apache-2.0
//
// The list scheduler of `generate_auto`: one pass through all events in order of time. Each device
// takes the action that a rule prefers among those that can begin.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/schedule/auto_schedule.hpp"

namespace millrace::pipeline {

/// The most micro-batches that may be held, by stage.
using Caps = std::vector<std::int32_t>;

/// A checked AutoRequest with all defaults filled in. Errors: as generate_auto.
struct ScheduleProblem : AutoRequest {
  explicit ScheduleProblem(AutoRequest request);

  [[nodiscard]] std::int32_t devices() const { return static_cast<std::int32_t>(stages_on.size()); }
  [[nodiscard]] std::int32_t device(std::int32_t stage) const {
    return device_of[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const StageCost& cost(std::int32_t stage) const {
    return costs.stages[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] double bytes_of_micro_batch(std::size_t device) const {
    double sum = 0.0;
    for (const std::int32_t s : stages_on[device]) sum += cost(s).stash_bytes;
    return sum;
  }
  [[nodiscard]] ActionKind backward() const {
    return split_backward ? ActionKind::BackwardInput : ActionKind::Backward;
  }
  [[nodiscard]] double latency(const Link& l) const {
    return device(l.from) == device(l.to) ? 0.0 : costs.link.latency;
  }

  std::int32_t stages;
  std::vector<std::vector<std::int32_t>> stages_on;  ///< by device
};

/// Seconds from the beginning of an action to the end of its micro-batch on idle devices.
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

/// Which action a device takes among those that can begin.
struct Rule {
  enum class Order {
    ByKind,  ///< lowest of `ranks` first; among equals the smaller micro-batch
    InTurn,  ///< alternately a forward and a backward
    ByPath,  ///< longest path to the end of the step first
  };
  Order order = Order::ByKind;
  std::array<int, 3> ranks = {1, 0, 2};  ///< of forward, backward (input), weight
  /// ByPath: priority of an earlier micro-batch over the next one, as a share of the longest
  /// device's work per micro-batch. 0 runs forwards as far ahead as memory allows; 1 keeps to the
  /// order of micro-batches.
  double age = 0.0;
  /// How long a device waits for a preferred action that is not ready yet, as a multiple of the
  /// duration of the action that is ready.
  double patience = 0.0;
};

/// A complete schedule (compute actions only) in which no stage exceeds its cap (at least 1) and no
/// device its byte limit. Always finishes.
[[nodiscard]] Schedule list_schedule(const ScheduleProblem& problem, const Paths& paths,
                                     const Rule& rule, const Caps& caps);

}  // namespace millrace::pipeline
