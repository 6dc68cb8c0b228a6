// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// Whether make_depthwise_gradient supports `shape`: a depthwise convolution with a 3x3 or 5x5
/// window, without dilation and bias.
[[nodiscard]] bool is_depthwise(const ConvShape& shape);

/// A depthwise convolution that computes its weight gradient with our own loops over NHWC images, a
/// register strip of channels at a time. `rest` computes the other passes; it is prepared for the
/// same shape without the weight gradient.
[[nodiscard]] std::unique_ptr<LinearOp> make_depthwise_gradient(const ConvShape& shape, DType type,
                                                                std::unique_ptr<LinearOp> rest);

}  // namespace millrace::ops
