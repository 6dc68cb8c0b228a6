// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// The same convolution with each `merged` neighboring groups joined into one. `merged` must divide
/// the number of groups.
[[nodiscard]] ConvShape merged_shape(const ConvShape& shape, std::int64_t merged);

/// Computes a grouped convolution with `wide`, a convolution with wider groups that is prepared for
/// merged_shape(shape, merged). The wide kernel holds the narrow ones on its diagonal and zeros
/// elsewhere. Only one product in `merged` is useful. It is still faster on processors whose matrix
/// units take 16 channels at a time, because the library is slow for narrower groups.
[[nodiscard]] std::unique_ptr<LinearOp> make_merged_groups(const ConvShape& shape,
                                                           std::int64_t merged, DType type,
                                                           std::unique_ptr<LinearOp> wide);

}  // namespace millrace::ops
