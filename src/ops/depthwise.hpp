// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Whether `shape` is a convolution that make_depthwise_gradient can prepare: every channel by
/// itself, window 3x3 or 5x5, no dilation, no bias.
[[nodiscard]] bool is_depthwise(const ConvShape& shape);

/// A depthwise convolution whose weight gradient is taken in own loops over NHWC images, a register
/// strip of channels at a time, and whose other passes are those of `rest`, prepared for the same
/// shape without its weight gradient.
[[nodiscard]] std::unique_ptr<WeightedOp> make_depthwise_gradient(const ConvShape& shape,
                                                                  DType type,
                                                                  std::unique_ptr<WeightedOp> rest);

}  // namespace millrace::ops
