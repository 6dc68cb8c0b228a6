// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/options.hpp"
#include "run/run.hpp"

namespace millrace::cli {

/// A line for each thing that a new training would do without an error although nobody can want it:
/// norms of a single value, layers that stay random, a pipeline of one stage.
[[nodiscard]] std::vector<std::string> doubts_about_training(const Patch& options,
                                                             const run::Run& config);

}  // namespace millrace::cli
