// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// Whether `shape` is a strided 1x1 convolution without padding and groups.
[[nodiscard]] bool is_strided_pointwise(const ConvShape& shape);

/// The same convolution with stride 1 over only the pixels that it reads.
[[nodiscard]] ConvShape gathered_shape(const ConvShape& shape);

/// Computes a strided 1x1 convolution by gathering the pixels that it reads and calling `dense`,
/// which is prepared for gathered_shape(shape). The gather is cheap, and vendors' kernels for the
/// strided form are slow: backward weight of oneDNN 2.6 runs at an eighth of the dense rate.
[[nodiscard]] std::unique_ptr<LinearOp> make_strided_pointwise(const ConvShape& shape, DType type,
                                                               std::unique_ptr<LinearOp> dense);

}  // namespace millrace::ops
