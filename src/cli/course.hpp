// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/options.hpp"

namespace millrace::cli {

/// Removes the options for length, warm-up, horizon and validation of a training. For commands that
/// run only a few steps: recipes may contain these options, but they have no meaning there.
void forget_course(Options& options);

}  // namespace millrace::cli
