// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/text.hpp"

namespace millrace::io {

std::optional<std::int64_t> checked_elements(std::span<const std::int64_t> shape,
                                             std::int64_t element_bytes) noexcept {
  const auto negative = [](std::int64_t extent) { return extent < 0; };
  if (std::any_of(shape.begin(), shape.end(), negative)) return std::nullopt;
  // An extent of 0 makes the product 0, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / element_bytes;
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) {
    if (extent > most / product) return std::nullopt;
    product *= extent;
  }
  return product;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", join(shape, ", "));
}

}  // namespace millrace::io
