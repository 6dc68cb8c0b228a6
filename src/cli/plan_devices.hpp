// SPDX-License-Identifier: Apache-2.0
//
// `plan --devices N --total-batch B`: a search for the best layout of N devices.
#pragma once

#include <cstdint>
#include <functional>

#include "cli/options.hpp"
#include "cli/resolve.hpp"
#include "models/graph.hpp"
#include "partition/plan.hpp"
#include "train/memory.hpp"

namespace millrace::cli {

/// Removes what the search finds from options that come from a file. Errors: Usage for options of
/// the command line whose value the search finds, and for one of the two options without the other.
[[nodiscard]] Patch without_layout(Patch options);

/// What processes of this machine need besides their stages.
struct ProcessNeeds {
  std::int64_t assumed = 0;  ///< bytes of a device
  /// Finds what the devices of a run need whose layout these options of `train` name.
  std::function<train::DeviceUse(const Patch&)> measure;
};

/// Prints the best layouts. `request` gives all that is not searched for. Within --memory the
/// layouts are those that a run fits into, measured with `needs`; without, only their stages count.
int print_layouts(const Patch& options, const models::Graph& graph,
                  const partition::PlanRequest& request, const ProcessNeeds* needs,
                  const DatasetFacts& facts);

}  // namespace millrace::cli
