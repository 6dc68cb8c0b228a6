// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// Combines two ops into one: `first` runs the passes in `firsts`, `second` runs the others. Both
/// are prepared for the same shape, each for its own passes only.
[[nodiscard]] std::unique_ptr<LinearOp> make_by_pass(Passes firsts, std::unique_ptr<LinearOp> first,
                                                     std::unique_ptr<LinearOp> second);

}  // namespace millrace::ops
