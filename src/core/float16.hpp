// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "core/bfloat16.hpp"
#include "core/portable.hpp"

namespace millrace {

/// IEEE binary16: a sign, 5 bits of exponent, 10 of fraction; numbers up to 65504. Storage only, of
/// images on their way to a device.
struct float16 {  // NOLINT(readability-identifier-naming): spelled like the types it stands with
  std::uint16_t bits = 0;
};

static_assert(sizeof(float16) == 2);

/// Exact. The exponent is moved to that of binary32 by a product with a power of two, which numbers
/// below the least normal one go through as well; infinities and NaNs are those left over.
MILLRACE_FUNCTION float to_float(float16 x) {
  constexpr float kExponents = 0x1p112f;  // 2^(127 - 15)
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7fffu) << 13;
  float scaled;
  std::memcpy(&scaled, &magnitude, sizeof scaled);
  scaled *= kExponents;
  std::uint32_t wide;
  std::memcpy(&wide, &scaled, sizeof wide);
  const bool special = (x.bits & 0x7c00u) == 0x7c00u;
  wide = special ? magnitude | 0x7f800000u : wide;
  wide |= static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

/// Rounds to nearest, ties to even; what is too large becomes infinity, a NaN a quiet NaN.
/// Branch-free, so that loops over it vectorise.
MILLRACE_FUNCTION float16 to_float16(float x) {
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  std::uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  const std::uint32_t sign = (wide >> 16) & 0x8000u;
  const std::uint32_t magnitude = wide & 0x7fffffffu;
  // A normal number: the exponent moves by 112, and 13 bits of fraction are rounded off.
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + odd) >> 13;
  // A smaller one: a sum with 2^-1 leaves multiples of 2^-24 and rounds to them as sums do.
  float tiny;
  std::memcpy(&tiny, &magnitude, sizeof tiny);
  tiny += 0.5f;
  std::uint32_t subnormal;
  std::memcpy(&subnormal, &tiny, sizeof subnormal);
  subnormal -= 0x3f000000u;
  std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;  // below 2^-14
  half = magnitude >= 0x47800000u ? 0x7c00u : half;                   // 2^16 and more
  half = magnitude > kInfinity ? 0x7e00u : half;
  return float16{static_cast<std::uint16_t>(half | sign)};
}

template <>
MILLRACE_FUNCTION float16 store_as<float16>(float x) {
  return to_float16(x);
}

}  // namespace millrace
