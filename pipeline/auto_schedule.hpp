// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/schedule.hpp"
#include "pipeline/simulate.hpp"

namespace millrace::pipeline {

/// What a schedule is to be made for: measured costs, which need not be equal, and what fits.
struct AutoRequest {
  Costs costs;  ///< of as many stages as there are
  std::int32_t micro_batches = 1;
  bool split_backward = false;          ///< BackwardInput and BackwardWeight in place of Backward
  std::vector<std::int32_t> device_of;  ///< by stage; empty: stage s on device s
  std::vector<Link> links;              ///< empty: each stage feeds the next
  /// Most micro-batches between their forward and the end of their backward, by stage, as
  /// `stash_peaks` counts them; empty: no limit.
  std::vector<std::int32_t> stash_limit;
  /// Most bytes of `StageCost::stash_bytes` that a device holds, counted likewise, by device;
  /// empty: no limit.
  std::vector<double> byte_limit;
};

/// The shortest schedule found for stages of any length, by `simulate`: compute only, as from
/// `generate`, named "Auto". Tries the generators that suit one stage a device as well as those
/// that its own list scheduler makes under a few rules of precedence, so that it is no worse than
/// Sequential, GPipe, Grouped or 1F1B of any warm-up (and ZB-H1, when it splits) within the same
/// limits. Of equally short ones it takes what holds less. No chance is involved: the same program
/// answers the same request with the same schedule.
///
///   time   some 100 simulations, and as many walks through the schedule: 0.1 s for 8 stages and
///          32 micro-batches, 4 s for 16 and 256
///
/// Errors: Config, when no schedule keeps to the limits (with the least that does), or when numbers
/// of the request contradict each other.
[[nodiscard]] Schedule generate_auto(const AutoRequest& request);

/// What no schedule for the request can beat, whatever the limits; with one stage a device, whole
/// backwards and links of no length the same as that of the costs alone.
[[nodiscard]] double lower_bound_seconds(const AutoRequest& request);

}  // namespace millrace::pipeline
