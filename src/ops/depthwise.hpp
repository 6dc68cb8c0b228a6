// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Whether `shape` is a convolution that make_depthwise can prepare: every channel by itself,
/// window 3x3 or 5x5, no dilation, no bias.
[[nodiscard]] bool is_depthwise(const ConvShape& shape);

/// A depthwise convolution in own loops over NHWC images, a register strip of channels at a time.
/// Vendors' kernels for some of these shapes are far from what the memory gives (oneDNN 2.6: the
/// weight gradient of 5x5 windows at a hundredth of it).
[[nodiscard]] std::unique_ptr<WeightedOp> make_depthwise(const ConvShape& shape, DType type);

}  // namespace millrace::ops
