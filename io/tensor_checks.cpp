// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/text.hpp"

namespace millrace::io {

std::optional<std::int64_t> checked_elements(std::span<const std::int64_t> shape,
                                             std::int64_t element_bytes) noexcept {
  if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 0; })) return {};
  // An extent of 0 makes the product 0, however large the others are.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
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

std::string bad_value(std::span<const float> values, std::span<const std::int64_t> shape,
                      std::string_view name) {
  const bool negative_is_bad = name.ends_with("/moving_variance");
  const auto found = std::ranges::find_if(values, [negative_is_bad](float value) {
    return !std::isfinite(value) || (negative_is_bad && value < 0.0f);
  });
  if (found == values.end()) return "";
  std::vector<std::int64_t> indices(shape.size());
  auto left = static_cast<std::int64_t>(found - values.begin());
  for (std::size_t d = shape.size(); d-- > 0; left /= shape[d]) indices[d] = left % shape[d];
  return fmt::format("{} is {}{}", shape_text(indices), *found,
                     std::isfinite(*found) ? ", but a variance must not be negative" : "");
}

}  // namespace millrace::io
