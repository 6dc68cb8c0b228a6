// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "io/records/encoded_source.hpp"

namespace millrace::cli {

/// A line on standard error that is rewritten in place while something takes long; nothing where
/// lines cannot be rewritten.
[[nodiscard]] io::ProgressCallback progress_line(std::string what);

}  // namespace millrace::cli
