// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Whether `shape` is a 1x1 convolution that skips pixels: strided, unpadded, in one group.
[[nodiscard]] bool is_strided_pointwise(const ConvShape& shape);

/// The same convolution without its stride, over the pixels that it reads.
[[nodiscard]] ConvShape gathered_shape(const ConvShape& shape);

/// A strided 1x1 convolution as a gather of the pixels it reads and `dense`, prepared for
/// gathered_shape(shape). Vendors' kernels for the strided form are slow (oneDNN 2.6: backward
/// weight at an eighth of the dense rate), the gather is cheap.
[[nodiscard]] std::unique_ptr<WeightedOp> make_strided_pointwise(const ConvShape& shape, DType type,
                                                                 std::unique_ptr<WeightedOp> dense);

}  // namespace millrace::ops
