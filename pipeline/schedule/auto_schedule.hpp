// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

/// Input of generate_auto: costs of the stages, which may differ, and limits of memory.
struct AutoRequest {
  Costs costs;  ///< of all stages
  std::int32_t micro_batches = 1;
  bool split_backward = false;          ///< BackwardInput and BackwardWeight in place of Backward
  std::vector<std::int32_t> device_of;  ///< by stage; empty: stage s on device s
  std::vector<Link> links;              ///< empty: each stage feeds the next
  /// Maximum number of micro-batches between their forward and the end of their backward, by stage,
  /// counted as in `stash_peaks`; empty: no limit.
  std::vector<std::int32_t> stash_limit;
  /// Maximum bytes of `StageCost::stash_bytes` held by a device, counted likewise, by device;
  /// empty: no limit.
  std::vector<double> byte_limit;
};

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
