// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

/// A tensor of this shape with its axes in another order: axis i of the result is axis `axes[i]` of
/// `values`. `{0, 3, 1, 2}` makes OIHW of OHWI.
[[nodiscard]] std::vector<float> permuted(std::span<const float> values,
                                          std::span<const std::int64_t> shape,
                                          std::span<const std::size_t> axes);

/// The way back: what permuted() made of a tensor of this `shape` becomes that tensor again.
[[nodiscard]] std::vector<float> unpermuted(std::span<const float> values,
                                            std::span<const std::int64_t> shape,
                                            std::span<const std::size_t> axes);

}  // namespace millrace
