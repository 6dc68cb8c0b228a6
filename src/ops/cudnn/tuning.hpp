// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "ops/cudnn/plan.hpp"

namespace millrace::ops::cudnn {

/// The kernels of a pass: those that the table names, if it has the pass and they keep to the
/// rules, otherwise the library's first choice. Empty, if there are none.
[[nodiscard]] std::optional<Plan> choose_plan(const Descriptor& device, const PassShape& pass,
                                              const PlanRules& rules, const KernelTable* table);

/// Microseconds that a plan takes; none, if the device cannot run it.
using Stopwatch = std::function<std::optional<double>(const Plan&)>;

/// Measures all plans of a pass that keep to the rules. Of equally fast ones the first is the best.
/// Empty, if there is none that runs.
[[nodiscard]] std::optional<TableRow> tune_pass(const Descriptor& device, const PassShape& pass,
                                                const PlanRules& rules, const Stopwatch& stopwatch);

}  // namespace millrace::ops::cudnn
