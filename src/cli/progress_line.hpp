// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "io/data/parallel.hpp"

namespace millrace::cli {

/// Shows progress in a line on standard error that is rewritten in place. Shows nothing if standard
/// error cannot rewrite lines.
[[nodiscard]] io::ProgressCallback progress_line(std::string what);

}  // namespace millrace::cli
