// SPDX-License-Identifier: Apache-2.0
//
// With stride 1, the gradient of a convolution's input is itself a convolution of dy. Its kernel is
// rotated by 180 degrees, with input and output channels swapped (Dumoulin and Visin 2016, section
// 4).
//
//   dx[i] = sum over o, r of dy[o][. + pad - r] k[o][r][i] = conv(dy, turned k)
//
// This is faster with libraries whose forward passes are better optimized.
#pragma once

#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// Whether this applies to `shape`: stride 1, one group, no dilation, padding smaller than the
/// window.
[[nodiscard]] bool is_turnable(const ConvShape& shape);

/// The convolution from dy to dx.
[[nodiscard]] ConvShape turned_shape(const ConvShape& shape);

/// An op with backward input as its only pass, in float32. It uses the forward pass of `turned`,
/// which is prepared for turned_shape() and only for that pass.
[[nodiscard]] std::unique_ptr<LinearOp> make_turned(const ConvShape& shape,
                                                    std::unique_ptr<LinearOp> turned);

}  // namespace millrace::ops
