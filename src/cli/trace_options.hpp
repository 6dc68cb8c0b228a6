// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/options.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Sets the weight updates to trace and the file to write. Errors: Usage.
void resolve_trace(const Options& options, train::TrainConfig& config);

}  // namespace millrace::cli
