// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/accumulator.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

inline constexpr int kSumLanes = 16;

/// The sum of x(k)^2 over k < n. Element k goes to lane k % kSumLanes, and the lanes are added as a
/// tree, so the order of summation depends on n only.
template <class Value>
KOKKOS_INLINE_FUNCTION Accumulator sum_of_squares(std::int64_t n, const Value& x) {
  Accumulator lanes[kSumLanes] = {};
  const std::int64_t whole = n / kSumLanes * kSumLanes;
  for (std::int64_t k = 0; k < whole; k += kSumLanes) {
    MILLRACE_SIMD
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const auto value = static_cast<Accumulator>(x(k + lane));
      lanes[lane] += value * value;
    }
  }
  for (std::int64_t k = whole; k < n; ++k) {
    const auto value = static_cast<Accumulator>(x(k));
    lanes[k - whole] += value * value;
  }
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

}  // namespace millrace::ops
