// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "core/bfloat16.hpp"
#include "core/portable.hpp"

namespace millrace {

/// IEEE binary16: a sign bit, 5 exponent bits and 10 fraction bits. The largest number is 65504;
/// numbers below 2^-14 are multiples of 2^-24. Storage only; arithmetic is done in float.
struct float16 {  // NOLINT(readability-identifier-naming): spelled like the types it stands with
  std::uint16_t bits = 0;
};

static_assert(sizeof(float16) == 2);

/// Exact. Branch-free and in signed integers, so that loops over it vectorize. Subnormal floats,
/// which are slow on some processors, do not occur on the way.
MILLRACE_FUNCTION float to_float(float16 x) {
#if MILLRACE_PTX
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#elif MILLRACE_AMDGCN
  return static_cast<float>(std::bit_cast<_Float16>(x));
#else
  constexpr std::int32_t kExponents = 0x38000000;  // difference of the exponent biases, 127 - 15
  const std::int32_t magnitude = static_cast<std::int32_t>(x.bits & 0x7fff) << 13;
  const std::int32_t normal = magnitude + kExponents;
  const std::int32_t special = normal + kExponents;
  // 2^-14 + number - 2^-14 moves the fraction to its place in a normal number.
  const std::int32_t above = magnitude + kExponents + 0x00800000;
  const float tiny = std::bit_cast<float>(above) - 0x1p-14f;
  auto wide = std::bit_cast<std::int32_t>(tiny);
  wide = magnitude < 0x00800000 ? wide : normal;
  wide = magnitude < 0x0f800000 ? wide : special;
  const std::uint32_t bits =
      static_cast<std::uint32_t>(wide) | static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  return std::bit_cast<float>(bits);
#endif
}

namespace float16_detail {

/// Sign and magnitude of a float, as integers.
struct Parts {
  std::int32_t magnitude;
  std::int32_t sign;  ///< in float16's bit position
};

MILLRACE_FUNCTION Parts parts_of(float x) {
  const auto wide = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::int32_t>(wide & 0x7fffffffu),
          static_cast<std::int32_t>((wide >> 16) & 0x8000u)};
}

/// Rounds a magnitude below 2^-14 to a multiple of 2^-24 and returns the factor. Adding 2^-1 does
/// the rounding.
MILLRACE_FUNCTION std::int32_t subnormal_of(std::int32_t magnitude) {
  const float tiny = std::bit_cast<float>(magnitude) + 0.5f;
  return std::bit_cast<std::int32_t>(tiny) - 0x3f000000;
}

}  // namespace float16_detail

/// Rounds to nearest, ties to even. Too large values become infinity, a NaN becomes a quiet NaN,
/// whose other bits depend on the device. Branch-free, so that loops over it vectorize.
MILLRACE_FUNCTION float16 to_float16(float x) {
#if MILLRACE_PTX
  float16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#elif MILLRACE_AMDGCN
  return std::bit_cast<float16>(static_cast<_Float16>(x));
#else
  const auto [magnitude, sign] = float16_detail::parts_of(x);
  // A normal number: subtract 112 from the exponent and round off 13 fraction bits.
  const std::int32_t odd = (magnitude >> 13) & 1;
  const std::int32_t normal = (magnitude - 0x38000000 + 0x0fff + odd) >> 13;
  const std::int32_t subnormal = float16_detail::subnormal_of(magnitude);
  std::int32_t half = magnitude < 0x38800000 ? subnormal : normal;  // below 2^-14
  half = magnitude >= 0x47800000 ? 0x7c00 : half;                   // 2^16 and more
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return float16{static_cast<std::uint16_t>(half | sign)};
#endif
}

/// Stochastic rounding to one of the two neighbors. The probability of rounding away from zero is
/// proportional to the distance from the neighbor nearer to zero, so the mean is x to within 2^-13
/// of the distance between the neighbors when `noise` is uniform over its 16 bits. Values that
/// float16 represents exactly do not change. Infinities and NaNs are treated as in to_float16.
/// Finite numbers stay finite: they saturate at the largest float16.
MILLRACE_FUNCTION float16 to_float16_stochastic(float x, std::uint16_t noise) {
  constexpr std::int32_t kLargest = 0x7bff;
  const auto [magnitude, sign] = float16_detail::parts_of(x);
  const std::int32_t chance = noise >> 3;
  const std::int32_t normal = (magnitude - 0x38000000 + chance) >> 13;
  // A subnormal result: count in units of 2^-37, then drop 13 bits.
  const bool small = magnitude < 0x38800000;  // below 2^-14
  const std::int32_t scalable = small ? magnitude : 0;
  const auto tiny = std::bit_cast<float>(scalable);
  const std::int32_t subnormal = (static_cast<std::int32_t>(tiny * 0x1p37f) + chance) >> 13;
  std::int32_t half = small ? subnormal : normal;
  half = half < kLargest && magnitude < 0x47800000 ? half : kLargest;
  half = magnitude < 0x7f800000 ? half : 0x7c00;
  half = magnitude <= 0x7f800000 ? half : 0x7e00;
  return float16{static_cast<std::uint16_t>(half | sign)};
}

template <>
MILLRACE_FUNCTION float16 store_as<float16>(float x) {
  return to_float16(x);
}
template <>
MILLRACE_FUNCTION float16 store_exact<float16>(float x) {
  return to_float16(x);
}
/// On cores it rounds in float32 without converting to 16 bits and back, which is half the work.
template <>
MILLRACE_FUNCTION float rounded_as<float16>(float x) {
#if MILLRACE_PTX || MILLRACE_AMDGCN
  return to_float(to_float16(x));
#else
  const auto [magnitude, sign] = float16_detail::parts_of(x);
  const auto odd = static_cast<std::uint32_t>(magnitude >> 13) & 1u;
  // Unsigned, because NaNs may overflow; they are replaced below.
  const auto normal =
      static_cast<std::int32_t>((static_cast<std::uint32_t>(magnitude) + 0x0fffu + odd) & ~0x1fffu);
  // As in subnormal_of().
  const float tiny = (std::bit_cast<float>(magnitude) + 0.5f) - 0.5f;
  auto bits = std::bit_cast<std::int32_t>(tiny);
  bits = magnitude < 0x38800000 ? bits : normal;
  bits = normal >= 0x47800000 ? 0x7f800000 : bits;
  bits = magnitude > 0x7f800000 ? 0x7fc00000 : bits;
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) | static_cast<std::uint32_t>(sign)
                                                                    << 16;
  return std::bit_cast<float>(wide);
#endif
}
template <>
MILLRACE_FUNCTION float16 store_stochastic<float16>(float x, std::uint16_t noise) {
  return to_float16_stochastic(x, noise);
}

}  // namespace millrace
