// SPDX-License-Identifier: Apache-2.0
//
// `plan --devices N --total-batch B`: a search for the best layout of N devices.
#pragma once

#include "cli/datasets.hpp"
#include "cli/options.hpp"
#include "cli/resolve.hpp"
#include "comm/world.hpp"
#include "models/graph.hpp"
#include "partition/plan.hpp"

namespace millrace::cli {

/// Removes what the search finds from options that come from a file. Errors: Usage for options of
/// the command line whose value the search finds, and for one of the two options without the other.
[[nodiscard]] Patch without_layout(Patch options);

/// Prints the best layouts for what was `given`. `options`, `resolution` and `request` are the rest
/// of it, without a layout. Within --memory the layouts are those that a run fits into, measured on
/// this machine; for another machine only their stages count.
void plan_devices(const Patch& given, const Patch& options, const Datasets& sets,
                  const Resolution& resolution, const models::Graph& graph,
                  partition::PlanRequest request, const comm::World& world);

}  // namespace millrace::cli
