// SPDX-License-Identifier: Apache-2.0
//
// What choosing a layout (choose.cpp) and measuring what was chosen (fit.cpp) share.
#pragma once

#include "partition/choose.hpp"

namespace millrace::partition {

/// The layout for what `sizer` assumes, without measuring.
[[nodiscard]] Choice choose_once(const Graph& graph, Run run, const LayoutFacts& facts,
                                 const Sizer& sizer);
/// The same for a run that keeps its devices, ranks and threads.
[[nodiscard]] Choice rearrange(const Graph& graph, Run run, const LayoutFacts& facts,
                               const Sizer& sizer);
/// Whether schedule and cuts are open, so that they are chosen together. `devices` of a replica.
[[nodiscard]] bool opens_both(const run::LayoutRequest& asked, std::int32_t devices);
/// plan_request with sizes, where memory is limited.
[[nodiscard]] PlanRequest sized_request(const Run& run, const pipeline::ScheduleRequest& schedule,
                                        const Sizer& sizer);
/// The layout that is faster or, if none of them fits, smaller, after measurements; see choose().
[[nodiscard]] Choice fit(const Graph& graph, Choice first, const LayoutFacts& facts,
                         const Sizer& sizer);

}  // namespace millrace::partition
