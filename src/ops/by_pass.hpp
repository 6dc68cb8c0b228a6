// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// An op whose passes two others share: `first` takes those in `firsts`, `second` the rest. Each is
/// prepared for the same shape and for its own passes alone.
[[nodiscard]] std::unique_ptr<WeightedOp> make_by_pass(Passes firsts,
                                                       std::unique_ptr<WeightedOp> first,
                                                       std::unique_ptr<WeightedOp> second);

}  // namespace millrace::ops
