// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "core/portable.hpp"

namespace millrace {

/// bfloat16: the upper half of an IEEE binary32. Storage only; arithmetic is done in float.
struct bfloat16 {  // NOLINT(readability-identifier-naming): spelled like the types it stands with
  std::uint16_t bits = 0;
};

static_assert(sizeof(bfloat16) == 2);

MILLRACE_FUNCTION float to_float(float x) { return x; }

// NVIDIA's GPUs round by an instruction for two values. The compiler pairs neighbors that are
// stored together; halves of registers are named, not shifted, so that it sees them.

MILLRACE_FUNCTION float to_float(bfloat16 x) {
#if MILLRACE_PTX
  std::uint32_t wide;
  asm("mov.b32 %0, {%1, %2};" : "=r"(wide) : "h"(std::uint16_t{0}), "h"(x.bits));
#else
  const std::uint32_t wide = static_cast<std::uint32_t>(x.bits) << 16;
#endif
  return std::bit_cast<float>(wide);
}

/// Rounds to nearest, ties to even; a NaN becomes a quiet NaN, whose other bits depend on the
/// device. Branch-free, so that loops over it vectorize.
MILLRACE_FUNCTION bfloat16 to_bfloat16(float x) {
#if MILLRACE_PTX
  bfloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const auto wide = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (wide >> 16) | 0x40u;
  const bool is_nan = (wide & 0x7fffffffu) > 0x7f800000u;
  return bfloat16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
#endif
}

/// Stochastic rounding to one of the two neighbors. The probability of rounding away from zero is
/// proportional to the distance from the neighbor nearer to zero, so the mean is x when `noise` is
/// uniform over its 16 bits. Values that bfloat16 represents exactly do not change. Infinities and
/// NaNs are treated as in to_bfloat16. Finite numbers stay finite: they saturate at the largest
/// bfloat16.
MILLRACE_FUNCTION bfloat16 to_bfloat16_stochastic(float x, std::uint16_t noise) {
  const auto wide = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = wide & 0x7fffffffu;
  const std::uint32_t rounded = (magnitude + noise) >> 16;
  const std::uint32_t finite = rounded < 0x7f7fu ? rounded : 0x7f7fu;
  const std::uint32_t special = (magnitude >> 16) | (magnitude > 0x7f800000u ? 0x40u : 0u);
  const std::uint32_t upper = magnitude < 0x7f800000u ? finite : special;
  return bfloat16{static_cast<std::uint16_t>(upper | ((wide >> 16) & 0x8000u))};
}

/// Conversion from float to the storage type T, rounding to nearest even.
template <class T>
MILLRACE_FUNCTION T store_as(float x);
template <>
MILLRACE_FUNCTION float store_as<float>(float x) {
  return x;
}
template <>
MILLRACE_FUNCTION bfloat16 store_as<bfloat16>(float x) {
  return to_bfloat16(x);
}

/// Conversion of a float that T represents exactly: nothing is rounded.
template <class T>
MILLRACE_FUNCTION T store_exact(float x);
template <>
MILLRACE_FUNCTION float store_exact<float>(float x) {
  return x;
}
template <>
MILLRACE_FUNCTION bfloat16 store_exact<bfloat16>(float x) {
#if MILLRACE_PTX
  bfloat16 upper;
  [[maybe_unused]] std::uint16_t lower;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(lower), "=h"(upper.bits) : "f"(x));
  return upper;
#else
  const auto wide = std::bit_cast<std::uint32_t>(x);
  return bfloat16{static_cast<std::uint16_t>(wide >> 16)};
#endif
}

/// Stochastic rounding to a 16-bit storage type T; see to_bfloat16_stochastic.
template <class T>
MILLRACE_FUNCTION T store_stochastic(float x, std::uint16_t noise);
template <>
MILLRACE_FUNCTION bfloat16 store_stochastic<bfloat16>(float x, std::uint16_t noise) {
  return to_bfloat16_stochastic(x, noise);
}

/// `x` rounded to storage type T: the value that would cross a cut point.
template <class T>
MILLRACE_FUNCTION float rounded_as(float x) {
  return to_float(store_as<T>(x));
}
template <>
MILLRACE_FUNCTION float rounded_as<bfloat16>(float x) {
#if MILLRACE_PTX
  std::uint32_t wide;  // the pair of x and 0
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(wide) : "f"(x), "f"(0.0f));
  return std::bit_cast<float>(wide);
#else
  return to_float(to_bfloat16(x));
#endif
}

}  // namespace millrace
