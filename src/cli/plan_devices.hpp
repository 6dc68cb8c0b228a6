// SPDX-License-Identifier: Apache-2.0
//
// `plan --devices N --total-batch B`: a search for the best layout of N devices.
#pragma once

#include "cli/options.hpp"
#include "cli/resolve.hpp"
#include "models/graph.hpp"
#include "partition/plan.hpp"

namespace millrace::cli {

/// Removes what the search finds from options that come from a file. Errors: Usage for options of
/// the command line whose value the search finds, and for one of the two options without the other.
[[nodiscard]] Options without_layout(Options options);

/// Prints the best layouts. `request` gives all that is not searched for; a device must hold
/// `rest` bytes besides its stages.
int print_layouts(const Options& options, const models::Graph& graph,
                  const partition::PlanRequest& request, std::int64_t rest,
                  const DatasetFacts& facts);

}  // namespace millrace::cli
