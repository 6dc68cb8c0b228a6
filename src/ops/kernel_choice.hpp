// SPDX-License-Identifier: Apache-2.0
//
// The shapes for which one of our kernels is faster than a vendor's, as measured. The choice
// depends on shape, precision, instruction set and nothing else: never on a clock during training.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/vendor.hpp"

namespace millrace::ops {

/// What runs instead of the vendor's convolution.
enum class Replacement {
  None,
  Gathered,     ///< strided_pointwise.cpp
  Product,      ///< a dense op
  OwnGradient,  ///< depthwise.cpp
  Turned,       ///< turned.cpp, for backward input
  Merged,       ///< merged_groups.cpp
};

struct KernelChoice {
  Replacement replacement = Replacement::None;
  std::int64_t merged = 1;  ///< with Merged: neighboring groups that are joined
};

/// The choice for a convolution. Without a level (a vendor that was not measured) there is no
/// replacement.
[[nodiscard]] KernelChoice choose_kernel(const ConvShape& shape, DType type, Passes passes,
                                         std::optional<MeasuredLevel> level);

}  // namespace millrace::ops
