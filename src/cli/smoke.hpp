// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/options.hpp"

namespace millrace::cli {

/// The same training, reduced to a check of less than a minute: one replica, one process, at most
/// 16 images per update and 64 x 64 pixels, a few updates, and synthetic images if the data are not
/// available. The stages stay the same. Every reduction adds a line to `reductions`.
[[nodiscard]] Patch smoke_options(const Patch& options, std::vector<std::string>& reductions);

}  // namespace millrace::cli
