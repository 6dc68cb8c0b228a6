// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace millrace::io {

/// Product of the extents (1 for none); nothing when one is negative or the product times
/// `element_bytes` leaves 63 bits: sizes read from files come through here before anything is
/// allocated.
[[nodiscard]] std::optional<std::int64_t> checked_elements(std::span<const std::int64_t> shape,
                                                           std::int64_t element_bytes) noexcept;

/// "[64, 3, 3, 16]".
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace millrace::io
