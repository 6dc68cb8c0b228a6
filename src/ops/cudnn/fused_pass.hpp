// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "ops/cudnn/pass_graph.hpp"
#include "ops/vendor.hpp"

namespace millrace::ops::cudnn {

/// The forward pass with sums that the first two of these calls are as one: a convolution without
/// bias in float16, and the statistics of the batch norm that reads it. Empty, if they are
/// something else. The library has no such kernels for bfloat16 and float32.
[[nodiscard]] std::optional<PassShape> fused_pass(std::span<const OfferedCall> calls, DType type);

}  // namespace millrace::ops::cudnn
