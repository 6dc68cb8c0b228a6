// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Combines two ops into one: `first` runs the passes in `firsts`, `second` runs the others. Both
/// are prepared for the same shape, each for its own passes only.
[[nodiscard]] std::unique_ptr<WeightedOp> make_by_pass(Passes firsts,
                                                       std::unique_ptr<WeightedOp> first,
                                                       std::unique_ptr<WeightedOp> second);

}  // namespace millrace::ops
