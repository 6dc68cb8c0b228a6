// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/options.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// A line for each thing that a new training would do without an error although nobody can want it:
/// norms of a single value, layers that stay random, a pipeline of one stage.
[[nodiscard]] std::vector<std::string> doubts_about_training(const Options& options,
                                                             const train::TrainConfig& config);

}  // namespace millrace::cli
