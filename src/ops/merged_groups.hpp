// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// The same convolution with every `merged` neighbouring groups as one: `merged` must divide the
/// groups.
[[nodiscard]] ConvShape merged_shape(const ConvShape& shape, std::int64_t merged);

/// A grouped convolution as one with wider groups, `wide`, prepared for merged_shape(shape,
/// merged): its kernel holds the narrow ones on the diagonal and zeros elsewhere. That wastes all
/// but one product in `merged`, and is faster all the same where the vendor's matrix units take 16
/// channels at a time and fewer fall back to something slow.
[[nodiscard]] std::unique_ptr<WeightedOp> make_merged_groups(const ConvShape& shape,
                                                             std::int64_t merged, DType type,
                                                             std::unique_ptr<WeightedOp> wide);

}  // namespace millrace::ops
