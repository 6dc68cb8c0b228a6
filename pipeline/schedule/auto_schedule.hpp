// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pipeline/schedule/problem.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

/// The shortest schedule found for stages of any cost, as simulated by `simulate`: compute actions
/// only, as from `generate`, named "Auto". Tries the generators for one stage per device, and a
/// list scheduler under several priority rules. So the result is no worse than Sequential, GPipe,
/// Grouped or 1F1B with any warm-up (and ZB-H1 with split backward) within the same limits. Among
/// equally short schedules it takes the one with the smaller stash. Deterministic.
///
///   time   about 100 simulations and as many passes of the list scheduler: 0.1 s for 8 stages and
///          32 micro-batches, 4 s for 16 and 256
///
/// Errors: Config if no schedule is within the limits (with the smallest limit that works), or if
/// the request is inconsistent.
[[nodiscard]] Schedule generate_auto(const AutoRequest& request);

}  // namespace millrace::pipeline
