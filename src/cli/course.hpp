// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/options.hpp"

namespace millrace::cli {

/// Forgets what options say of the course of a training: its length, warm-up, horizon and
/// validation. For commands that look at a few steps of it, where none of this has a meaning and a
/// recipe may say it all the same.
void forget_course(Options& options);

}  // namespace millrace::cli
