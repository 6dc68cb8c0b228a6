// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "core/portable.hpp"

namespace millrace::ops {

/// 2^n as a float, for n from -126 to 127; unspecified for other n.
MILLRACE_FUNCTION float power_of_two(std::int32_t n) {
  const std::uint32_t bits = static_cast<std::uint32_t>(n + 127) << 23;
  return std::bit_cast<float>(bits);
}

/// e^x to within one unit in the last place: infinity on overflow, 0 below -104 (where subnormal
/// floats are zero, below -87.3), NaN for NaN. Has
/// no branches or calls, so that loops over it vectorize. Method: x = n ln 2 + r with |r| <= ln 2 /
/// 2, and e^r by the polynomial of Cephes' expf (Moshier 1989).
MILLRACE_FUNCTION float exponential(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // has few bits, so that its product with n is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer
  constexpr std::uint32_t kRounderBits = 0x4b400000u;
  const float low = x < -104.0f ? -104.0f : x;
  const float within = low > 89.0f ? 89.0f : low;
  const float rounded = within * kLog2e + kRounder;
  const float n = rounded - kRounder;
  const float r = (within - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const auto bits = std::bit_cast<std::uint32_t>(rounded);
  const auto exponent = static_cast<std::int32_t>(bits - kRounderBits);
  // In two steps, because 2^exponent may not be a float.
  const std::int32_t half = exponent >> 1;
  return p * power_of_two(half) * power_of_two(exponent - half);
}

}  // namespace millrace::ops
