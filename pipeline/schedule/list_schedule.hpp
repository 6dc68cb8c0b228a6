// SPDX-License-Identifier: Apache-2.0
//
// The list scheduler of `generate_auto`: one pass through all events in order of time. Each device
// takes the action that a rule prefers among those that can begin.
#pragma once

#include <array>

#include "pipeline/schedule/problem.hpp"

namespace millrace::pipeline {

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
