// SPDX-License-Identifier: Apache-2.0
//
// 1x1 convolutions of images of one pixel, such as the two of squeeze and excitation, on
// accelerators: products so small that their launches decide. Each pass is one launch, and so is
//
//   product, activation, product, activation      forward
//   activation, product, activation, product      backward, if weights have no gradients or later
//   two weight gradients
//
// A joined backward pass takes two, or three where its result has the memory of an operand. Runs
// have the bits of separate calls, because they do the same in the same order.
#pragma once

#include <memory>
#include <span>

#include "ops/vendor.hpp"

namespace millrace::ops::one_pixel {

/// Whether this is such a convolution, and small: at most 2^17 weights and 2,048 channels, and 2^25
/// weights that all samples together read.
[[nodiscard]] bool is_small(const ConvShape& shape);

/// One that is_small.
[[nodiscard]] std::unique_ptr<LinearOp> make(const ConvShape& shape, DType type);

/// The run that begins with these calls, if there is one.
[[nodiscard]] RunClaim claim(std::span<const OfferedCall> calls, DType type);

}  // namespace millrace::ops::one_pixel
