// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "core/error.hpp"

namespace millrace {

/// The mean of at least one number.
[[nodiscard]] inline double mean_of(std::span<const double> values) {
  MILLRACE_ASSERT(!values.empty());
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The value below which `fraction` of at least one number lies: 0 gives the smallest, 0.5 the
/// median, 1 the largest. Between two numbers it is interpolated linearly, as NumPy does by
/// default.
[[nodiscard]] inline double percentile_of(std::span<const double> values, double fraction) {
  MILLRACE_ASSERT(!values.empty() && fraction >= 0.0 && fraction <= 1.0);
  std::vector<double> ascending(values.begin(), values.end());
  std::sort(ascending.begin(), ascending.end());
  const double place = fraction * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  const double share = place - static_cast<double>(below);
  return ascending[below] + share * (ascending[above] - ascending[below]);
}

}  // namespace millrace
