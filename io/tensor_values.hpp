// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace::io {

/// Requirement on the values of a tensor: finite, and for running variances also not negative.
enum class ValueRule { Finite, FiniteNotNegative };

/// The rule for a parameter or running statistic of this name.
[[nodiscard]] ValueRule value_rule(std::string_view name) noexcept;

/// "[3, 0] is nan" for the first value in row-major order that breaks the rule, with its indices;
/// "" if there is none.
[[nodiscard]] std::string bad_value(std::span<const float> values,
                                    std::span<const std::int64_t> shape, ValueRule rule);

}  // namespace millrace::io
