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

/// Value of the bit pattern. Infinity counts as the next power of two, as in the rounding of IEEE
/// 754.
double unbounded_value(std::uint32_t upper_half) {
  const double sign = (upper_half & 0x8000u) != 0 ? -1.0 : 1.0;
  if ((upper_half & 0x7fffu) == 0x7f80u) return sign * 0x1p128;
  return static_cast<double>(from_bits(upper_half << 16));
}

/// The nearer of the two neighbors in bfloat16; the even one of a tie.
std::uint16_t slow_round(float x) {
  const std::uint32_t below = bits_of(x) >> 16;  // towards zero
  if (std::isinf(x)) return static_cast<std::uint16_t>(below);
  const double to_below = std::abs(static_cast<double>(x) - unbounded_value(below));
  const double to_above = std::abs(static_cast<double>(x) - unbounded_value(below + 1));
  const bool up = to_above < to_below || (to_above == to_below && (below & 1u) != 0);
  return static_cast<std::uint16_t>(up ? below + 1 : below);
}

TEST(BFloat16, RoundsLikeTheSlowReferenceAroundEveryPattern) {
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

/// Mean of the rounded value over all 2^16 values of `noise`.
double mean_over_all_draws(float x) {
  double sum = 0.0;
  for (std::uint32_t noise = 0; noise <= 0xffffu; ++noise)
    sum +=
        static_cast<double>(to_float(to_bfloat16_stochastic(x, static_cast<std::uint16_t>(noise))));
  return sum / 65536.0;
}

// Exact, because all values of `noise` are equally likely and the sums are exact in double.
TEST(BFloat16, StochasticRoundingIsRightOnAverage) {
  for (const float x : {1.0f, 0.1f, -0.1f, 3.14159265f, -1.00390625f, 1e30f, 1e-30f, 0x1.fffffep0f,
                        from_bits(0x00000001u), from_bits(0x00008001u), from_bits(0x807fffffu)})
    EXPECT_EQ(mean_over_all_draws(x), static_cast<double>(x)) << x;
}

TEST(BFloat16, StochasticRoundingKeepsExactValues) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float wide = to_float(bfloat16{static_cast<std::uint16_t>(bits)});
    for (const std::uint16_t noise : std::array<std::uint16_t, 4>{0, 1, 0x8000, 0xffff}) {
      const bfloat16 rounded = to_bfloat16_stochastic(wide, noise);
      if (std::isnan(wide)) {
        ASSERT_TRUE(std::isnan(to_float(rounded))) << bits;
      } else {
        ASSERT_EQ(rounded.bits, bits) << noise;
      }
    }
  }
  // NaNs with a nonzero fraction in the lower half only stay NaNs, too.
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16_stochastic(from_bits(0x7f800001u), 0))));
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16_stochastic(from_bits(0xffffffffu), 0xffff))));
}

TEST(BFloat16, StochasticRoundingKeepsFiniteNumbersFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const std::uint16_t noise : std::array<std::uint16_t, 3>{0, 0x7fff, 0xffff}) {
    EXPECT_EQ(to_bfloat16_stochastic(kMost, noise).bits, 0x7f7fu);
    EXPECT_EQ(to_bfloat16_stochastic(-kMost, noise).bits, 0xff7fu);
  }
  EXPECT_EQ(to_bfloat16_stochastic(std::numeric_limits<float>::infinity(), 0xffff).bits, 0x7f80u);
  EXPECT_EQ(to_bfloat16_stochastic(-std::numeric_limits<float>::infinity(), 0).bits, 0xff80u);
}

TEST(BFloat16, StochasticRoundingIsProportionalToDistance) {
  // A quarter of the way from 1 to 1 + 2^-7: the highest quarter of the noise values rounds up.
  const float x = 1.0f + 0x1p-9f;
  EXPECT_EQ(to_bfloat16_stochastic(x, 0xbfff).bits, 0x3f80u);
  EXPECT_EQ(to_bfloat16_stochastic(x, 0xc000).bits, 0x3f81u);
  EXPECT_EQ(to_bfloat16_stochastic(-x, 0xbfff).bits, 0xbf80u);
  EXPECT_EQ(to_bfloat16_stochastic(-x, 0xc000).bits, 0xbf81u);
}

TEST(BFloat16, RoundedAsIsTheIdentityInFloat) {
  EXPECT_EQ(rounded_as<float>(0.1f), 0.1f);
  EXPECT_EQ(store_exact<float>(0.1f), 0.1f);
  EXPECT_EQ(rounded_as<bfloat16>(0.1f), 0.10009765625f);
  EXPECT_EQ(store_as<bfloat16>(1.0f).bits, 0x3f80u);
}

}  // namespace
}  // namespace millrace
