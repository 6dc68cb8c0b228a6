// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/options.hpp"

namespace millrace::cli {

/// The same training, small enough to see within a minute that it works: one replica, one process,
/// at most 16 images a weight update and 64 x 64 pixels, a few weight updates, and synthetic images
/// where the data are not at hand. Stages stay. Every reduction adds a line to `reductions`.
[[nodiscard]] Options smoke_options(const Options& options, std::vector<std::string>& reductions);

}  // namespace millrace::cli
