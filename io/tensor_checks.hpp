// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace::io {

/// Maximum rank of a tensor in a file (HDF5's limit), and maximum bytes of its name.
inline constexpr std::size_t kMaxRank = 32;
inline constexpr std::size_t kMaxNameLength = 1024;

/// Product of the extents (1 for none); empty if one is negative or the product times
/// `element_bytes` exceeds 63 bits. Sizes from files are checked here before anything is allocated.
[[nodiscard]] std::optional<std::int64_t> checked_elements(std::span<const std::int64_t> shape,
                                                           std::int64_t element_bytes) noexcept;

/// "[64, 3, 3, 16]".
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

/// "[3, 0] is nan" for the first unusable value of the parameter or running statistic `name` in
/// row-major order, with its indices; "" if all are finite, and those of variances not negative.
[[nodiscard]] std::string bad_value(std::span<const float> values,
                                    std::span<const std::int64_t> shape, std::string_view name);

}  // namespace millrace::io
