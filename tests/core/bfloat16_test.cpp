// SPDX-License-Identifier: Apache-2.0
#include "core/bfloat16.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace millrace {
namespace {

float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// What the pattern stands for, with infinity taken as the next power of two, as IEEE 754 rounds.
double unbounded_value(std::uint32_t upper_half) {
  const double sign = (upper_half & 0x8000u) != 0 ? -1.0 : 1.0;
  if ((upper_half & 0x7fffu) == 0x7f80u) return sign * 0x1p128;
  return static_cast<double>(from_bits(upper_half << 16));
}

/// The nearer of the two neighbours in storage, the even one of two that are equally near.
std::uint16_t slow_round(float x) {
  const std::uint32_t below = bits_of(x) >> 16;  // towards zero
  if (std::isinf(x)) return static_cast<std::uint16_t>(below);
  const double to_below = std::abs(static_cast<double>(x) - unbounded_value(below));
  const double to_above = std::abs(static_cast<double>(x) - unbounded_value(below + 1));
  const bool up = to_above < to_below || (to_above == to_below && (below & 1u) != 0);
  return static_cast<std::uint16_t>(up ? below + 1 : below);
}

TEST(BFloat16, RoundsAsTheSlowReferenceAroundEveryPattern) {
  constexpr std::array<std::uint32_t, 9> kLowHalves = {0x0000, 0x0001, 0x4000, 0x7fff, 0x8000,
                                                       0x8001, 0xc000, 0xfffe, 0xffff};
  for (std::uint32_t upper = 0; upper <= 0xffffu; ++upper) {
    for (const std::uint32_t lower : kLowHalves) {
      const float x = from_bits((upper << 16) | lower);
      if (std::isnan(x)) {
        const std::uint16_t rounded = to_bfloat16(x).bits;
        ASSERT_TRUE(std::isnan(to_float(bfloat16{rounded}))) << upper << " " << lower;
        ASSERT_NE(rounded & 0x40u, 0u) << "signalling: " << upper << " " << lower;
        ASSERT_EQ(rounded & 0x8000u, upper & 0x8000u) << upper << " " << lower;
      } else {
        ASSERT_EQ(to_bfloat16(x).bits, slow_round(x)) << upper << " " << lower;
      }
    }
  }
}

TEST(BFloat16, TiesGoToEven) {
  EXPECT_EQ(to_bfloat16(from_bits(0x3f808000u)).bits, 0x3f80u);
  EXPECT_EQ(to_bfloat16(from_bits(0x3f818000u)).bits, 0x3f82u);
  EXPECT_EQ(to_bfloat16(from_bits(0x3f808001u)).bits, 0x3f81u);
  EXPECT_EQ(to_bfloat16(from_bits(0xbf818000u)).bits, 0xbf82u);
}

TEST(BFloat16, OverflowsToInfinityFromHalfAStepBeyondTheLargest) {
  EXPECT_EQ(to_bfloat16(from_bits(0x7f7f7fffu)).bits, 0x7f7fu);
  EXPECT_EQ(to_bfloat16(from_bits(0x7f7f8000u)).bits, 0x7f80u);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80u);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80u);
}

TEST(BFloat16, KeepsTheSignOfZeroAndDenormals) {
  EXPECT_EQ(to_bfloat16(-0.0f).bits, 0x8000u);
  EXPECT_EQ(to_bfloat16(from_bits(0x00008000u)).bits, 0x0000u);
  EXPECT_EQ(to_bfloat16(from_bits(0x00008001u)).bits, 0x0001u);
  EXPECT_EQ(to_bfloat16(from_bits(0x80018000u)).bits, 0x8002u);
}

TEST(BFloat16, EveryStoredNumberSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const bfloat16 stored{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(stored);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(bits_of(wide), bits << 16);
    ASSERT_EQ(to_bfloat16(wide).bits, stored.bits);
    ASSERT_EQ(store_exact<bfloat16>(wide).bits, stored.bits);
  }
}

TEST(BFloat16, RoundedAsIsTheIdentityInFloat) {
  EXPECT_EQ(rounded_as<float>(0.1f), 0.1f);
  EXPECT_EQ(store_exact<float>(0.1f), 0.1f);
  EXPECT_EQ(rounded_as<bfloat16>(0.1f), 0.10009765625f);
  EXPECT_EQ(store_as<bfloat16>(1.0f).bits, 0x3f80u);
}

}  // namespace
}  // namespace millrace
