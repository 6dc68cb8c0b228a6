// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "partition/cost.hpp"
#include "run/run.hpp"

namespace millrace::training {

/// The costs of a network's ops per micro-batch, with seconds measured on this device: medians of
/// several passes over the whole network, with split backward passes. Needs a device::Environment.
[[nodiscard]] std::vector<partition::OpCost> profiled_costs(const run::Run& config);

}  // namespace millrace::training
