// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/option_reader.hpp"
#include "cli/resolve.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Sets stages, devices, schedule, ranks and threads of a configuration whose model, batch and
/// precision are already set. Errors: Config and Usage, with the possible values; for missing
/// splits with a list of all cuts and their costs.
void resolve_layout(Reader& read, const MachineFacts& machine, train::TrainConfig& config,
                    std::vector<std::string>& notices);

/// Applies a new layout to the options of a restored run. The total batch must stay the same, so
/// the number of micro-batches follows the number of replicas. `given` are the options of the new
/// command line. Errors: Usage, naming both batches.
[[nodiscard]] Options relaid(const Options& given, const Options& recorded, Options merged);

}  // namespace millrace::cli
