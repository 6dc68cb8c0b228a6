// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace millrace {

/// The mean of at least one number.
[[nodiscard]] double mean_of(std::span<const double> values);

/// The value below which `fraction` of at least one number lies: 0 gives the smallest, 0.5 the
/// median, 1 the largest. Between two numbers it is interpolated linearly, as NumPy does by
/// default.
[[nodiscard]] double percentile_of(std::span<const double> values, double fraction);

}  // namespace millrace
