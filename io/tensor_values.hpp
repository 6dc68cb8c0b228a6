// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace::io {

/// What the values of a tensor have to be for a network that computes with them: all finite, and
/// running variances not negative besides.
enum class ValueRule { Finite, FiniteNotNegative };

/// The rule for a parameter or running statistic of this name.
[[nodiscard]] ValueRule value_rule(std::string_view name) noexcept;

/// "[3, 0] is nan" for the first value that breaks the rule, with its indices in row-major order;
/// "" when there is none.
[[nodiscard]] std::string bad_value(std::span<const float> values,
                                    std::span<const std::int64_t> shape, ValueRule rule);

}  // namespace millrace::io
