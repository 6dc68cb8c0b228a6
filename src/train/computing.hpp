// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "train/config.hpp"

namespace millrace::train {

/// With what a run computes on this machine, a line each for people: which instructions kernels
/// use; how 16-bit values are multiplied; what is slow.
[[nodiscard]] std::vector<std::string> describe_computing(const TrainConfig& config);

/// config.toml of a run: those lines as comments, then the configuration.
[[nodiscard]] std::string config_file_text(const TrainConfig& config);

}  // namespace millrace::train
