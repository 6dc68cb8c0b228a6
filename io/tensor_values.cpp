// SPDX-License-Identifier: Apache-2.0
#include "io/tensor_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "io/tensor_shape.hpp"

namespace millrace::io {

ValueRule value_rule(std::string_view name) noexcept {
  return name.ends_with("/moving_variance") ? ValueRule::FiniteNotNegative : ValueRule::Finite;
}

std::string bad_value(std::span<const float> values, std::span<const std::int64_t> shape,
                      ValueRule rule) {
  const bool negative_is_bad = rule == ValueRule::FiniteNotNegative;
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
