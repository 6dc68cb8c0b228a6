// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "train/config.hpp"

namespace millrace::train {

/// Lines for people about how this machine computes: the instructions that kernels use, how 16-bit
/// values are multiplied, and what is slow.
[[nodiscard]] std::vector<std::string> describe_computing(const TrainConfig& config);

/// The text of a run's config.toml: those lines as comments, then the configuration.
[[nodiscard]] std::string config_file_text(const TrainConfig& config);

}  // namespace millrace::train
