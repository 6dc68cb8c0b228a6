// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/option_reader.hpp"
#include "cli/resolve.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Decides stages, devices, schedule, ranks and threads of a configuration whose model, batch and
/// precision are decided. Errors: Config and Usage, with the nearest values that are possible; when
/// splits are missing, with all that there are and what each costs.
void resolve_layout(Reader& read, const MachineFacts& machine, train::TrainConfig& config,
                    std::vector<std::string>& notices);

/// A run that continues may be spread differently, as long as the total batch stays the same: the
/// number of micro-batches follows the number of replicas. `given` is what was asked for now.
/// Errors: Usage, naming both batches.
[[nodiscard]] Options relaid(const Options& given, const Options& recorded, Options merged);

}  // namespace millrace::cli
