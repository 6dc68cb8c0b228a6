// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "core/bfloat16.hpp"
#include "core/portable.hpp"

namespace millrace {

/// IEEE binary16: a sign, 5 bits of exponent, 10 of fraction; numbers up to 65504, multiples of
/// 2^-24 below 2^-14. Storage only; arithmetic is done in float.
struct float16 {  // NOLINT(readability-identifier-naming): spelled like the types it stands with
  std::uint16_t bits = 0;
};

static_assert(sizeof(float16) == 2);

/// Exact. Branch-free and in signed integers, so that loops over it vectorise; a number below the
/// least normal one never stands in a float that is subnormal, which some processors are slow at.
MILLRACE_FUNCTION float to_float(float16 x) {
  constexpr std::int32_t kExponents = 0x38000000;  // 127 - 15 of them
  const std::int32_t magnitude = static_cast<std::int32_t>(x.bits & 0x7fff) << 13;
  const std::int32_t normal = magnitude + kExponents;
  const std::int32_t special = normal + kExponents;
  // 2^-14 + number - 2^-14: the fraction moves to where that of a normal number is.
  const std::int32_t above = magnitude + kExponents + 0x00800000;
  float tiny;
  std::memcpy(&tiny, &above, sizeof tiny);
  tiny -= 0x1p-14f;
  std::int32_t wide;
  std::memcpy(&wide, &tiny, sizeof wide);
  wide = magnitude < 0x00800000 ? wide : normal;
  wide = magnitude < 0x0f800000 ? wide : special;
  const std::uint32_t bits =
      static_cast<std::uint32_t>(wide) | static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

namespace float16_detail {

/// Sign and magnitude of a float, as integers.
struct Parts {
  std::int32_t magnitude;
  std::int32_t sign;  ///< where float16 has it
};

MILLRACE_FUNCTION Parts parts_of(float x) {
  std::uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  return {static_cast<std::int32_t>(wide & 0x7fffffffu),
          static_cast<std::int32_t>((wide >> 16) & 0x8000u)};
}

/// Of a magnitude below 2^-14 the multiple of 2^-24: a sum with 2^-1 leaves those, and rounds to
/// them as sums do.
MILLRACE_FUNCTION std::int32_t subnormal_of(std::int32_t magnitude) {
  float tiny;
  std::memcpy(&tiny, &magnitude, sizeof tiny);
  tiny += 0.5f;
  std::int32_t sum;
  std::memcpy(&sum, &tiny, sizeof sum);
  return sum - 0x3f000000;
}

}  // namespace float16_detail

/// Rounds to nearest, ties to even; what is too large becomes infinity, a NaN a quiet NaN.
/// Branch-free, so that loops over it vectorise.
MILLRACE_FUNCTION float16 to_float16(float x) {
  const auto [magnitude, sign] = float16_detail::parts_of(x);
  // A normal number: the exponent moves by 112, and 13 bits of fraction are rounded off.
  const std::int32_t odd = (magnitude >> 13) & 1;
  const std::int32_t normal = (magnitude - 0x38000000 + 0x0fff + odd) >> 13;
  const std::int32_t subnormal = float16_detail::subnormal_of(magnitude);
  std::int32_t half = magnitude < 0x38800000 ? subnormal : normal;  // below 2^-14
  half = magnitude >= 0x47800000 ? 0x7c00 : half;                   // 2^16 and more
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return float16{static_cast<std::uint16_t>(half | sign)};
}

/// Rounds to one of the two neighbours, away from zero with a probability in proportion to the
/// distance from the one below: with `noise` uniform over its 16 bits the mean is x, to a 2^-13th
/// of the distance between the two. A value of float16 stays what it is; infinities and NaNs as in
/// to_float16. A finite number stays finite: beyond the largest of float16 it becomes that.
MILLRACE_FUNCTION float16 to_float16_stochastic(float x, std::uint16_t noise) {
  constexpr std::int32_t kLargest = 0x7bff;
  const auto [magnitude, sign] = float16_detail::parts_of(x);
  const std::int32_t chance = noise >> 3;
  const std::int32_t normal = (magnitude - 0x38000000 + chance) >> 13;
  // A smaller one as a multiple of 2^-37, of which 13 bits go.
  const bool small = magnitude < 0x38800000;  // below 2^-14
  const std::int32_t scalable = small ? magnitude : 0;
  float tiny;
  std::memcpy(&tiny, &scalable, sizeof tiny);
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
/// Without the way through 16 bits: half the work.
template <>
MILLRACE_FUNCTION float rounded_as<float16>(float x) {
  const auto [magnitude, sign] = float16_detail::parts_of(x);
  const auto odd = static_cast<std::uint32_t>(magnitude >> 13) & 1u;
  // Unsigned, as NaNs may pass the largest integer; they are replaced below.
  const auto normal =
      static_cast<std::int32_t>((static_cast<std::uint32_t>(magnitude) + 0x0fffu + odd) & ~0x1fffu);
  float tiny;
  std::memcpy(&tiny, &magnitude, sizeof tiny);
  tiny = (tiny + 0.5f) - 0.5f;  // as subnormal_of()
  std::int32_t bits;
  std::memcpy(&bits, &tiny, sizeof bits);
  bits = magnitude < 0x38800000 ? bits : normal;
  bits = normal >= 0x47800000 ? 0x7f800000 : bits;
  bits = magnitude > 0x7f800000 ? 0x7fc00000 : bits;
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) | static_cast<std::uint32_t>(sign)
                                                                    << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}
template <>
MILLRACE_FUNCTION float16 store_stochastic<float16>(float x, std::uint16_t noise) {
  return to_float16_stochastic(x, noise);
}

}  // namespace millrace
