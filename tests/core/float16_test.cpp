// SPDX-License-Identifier: Apache-2.0
#include "core/float16.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace millrace {
namespace {

constexpr std::uint32_t kPatterns = 0x10000;

/// Value of a bit pattern by the definition of binary16. Infinity counts as the next power of two.
double value_of(std::uint32_t bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const auto exponent = static_cast<int>((bits >> 10) & 31u);
  const auto fraction = static_cast<double>(bits & 1023u);
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024.0 + fraction, exponent - 25);
}

bool is_nan(std::uint32_t bits) { return (bits & 0x7fffu) > 0x7c00u; }
bool is_infinite(std::uint32_t bits) { return (bits & 0x7fffu) == 0x7c00u; }

TEST(Float16, ConvertsEveryPattern) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float x = to_float(float16{static_cast<std::uint16_t>(bits)});
    if (is_nan(bits)) {
      ASSERT_TRUE(std::isnan(x)) << bits;
    } else if (is_infinite(bits)) {
      ASSERT_TRUE(std::isinf(x)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(x), value_of(bits)) << bits;
    }
    ASSERT_EQ(std::signbit(x), (bits & 0x8000u) != 0) << bits;
    if (!is_nan(bits)) {
      ASSERT_EQ(to_float16(x).bits, bits);
    }
  }
}

// Around the midpoint of every two neighbors: the lower one below it, the upper one above it, the
// even one at it.
TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7c00u; ++bits) {
    const double middle = 0.5 * (value_of(bits) + value_of(bits + 1));
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle) << "a float holds it";
    const std::uint32_t even = bits + (bits & 1u);
    for (const float sign : {1.0f, -1.0f}) {
      const std::uint32_t sign_bit = sign < 0 ? 0x8000u : 0u;
      const float infinity = std::numeric_limits<float>::infinity();
      ASSERT_EQ(to_float16(sign * tie).bits, even | sign_bit) << bits;
      ASSERT_EQ(to_float16(sign * std::nextafter(tie, 0.0f)).bits, bits | sign_bit) << bits;
      ASSERT_EQ(to_float16(sign * std::nextafter(tie, infinity)).bits, (bits + 1) | sign_bit)
          << bits;
    }
  }
}

TEST(Float16, OverflowsToInfinityAndKeepsNaNs) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(to_float16(65504.0f).bits, 0x7bffu);
  EXPECT_EQ(to_float16(65519.9f).bits, 0x7bffu);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00u);
  EXPECT_EQ(to_float16(-kLargest).bits, 0xfc00u);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::denorm_min()).bits, 0u);
  for (const std::uint32_t pattern : {0x7f800001u, 0x7fc00000u, 0xffffffffu}) {
    float x;
    std::memcpy(&x, &pattern, sizeof x);
    EXPECT_TRUE(is_nan(to_float16(x).bits)) << pattern;
    EXPECT_EQ(to_float16(x).bits & 0x8000u, (pattern >> 16) & 0x8000u);
  }
}

// Exact: the fraction of noise values that round up equals the relative distance from the lower
// neighbor.
std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Every 509th pattern of a float, and those around each float16 and around each midpoint.
TEST(Float16, RoundedAsEqualsTheRoundTrip) {
  const auto check = [](std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    ASSERT_EQ(bits_of(rounded_as<float16>(x)), bits_of(to_float(to_float16(x)))) << bits;
  };
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000u; bits += 509)
    check(static_cast<std::uint32_t>(bits));
  for (std::uint32_t half = 0; half < kPatterns; ++half) {
    const std::uint32_t number = bits_of(to_float(float16{static_cast<std::uint16_t>(half)}));
    for (const std::uint32_t step : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu}) {
      check(number + step);
      check(number - step);
    }
  }
}

TEST(Float16, StochasticRoundingIsProportionalToDistance) {
  // Subnormals, the largest subnormal, normals, the next power of two, the largest number.
  for (const std::uint32_t below :
       {0x0000u, 0x0001u, 0x0155u, 0x03ffu, 0x0400u, 0x07ffu, 0x3555u, 0x3c00u, 0x3fffu, 0x7bfeu}) {
    for (const std::uint32_t parts : {1u, 2048u, 4095u, 5000u, 8191u}) {
      const double low = value_of(below);
      const double x = low + static_cast<double>(parts) / 8192.0 * (value_of(below + 1) - low);
      ASSERT_EQ(static_cast<double>(static_cast<float>(x)), x) << "a float holds it";
      for (const std::uint32_t sign : {0x0000u, 0x8000u}) {
        const auto signed_x = static_cast<float>(sign != 0 ? -x : x);
        std::uint32_t above = 0;
        for (std::uint32_t noise = 0; noise < kPatterns; ++noise) {
          const std::uint32_t rounded =
              to_float16_stochastic(signed_x, static_cast<std::uint16_t>(noise)).bits ^ sign;
          if (rounded != below) {
            ASSERT_EQ(rounded, below + 1) << noise;
            ++above;
          }
        }
        EXPECT_EQ(above, kPatterns / 8192 * parts) << signed_x;
      }
    }
  }
}

TEST(Float16, StochasticRoundingKeepsExactValues) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float x = to_float(float16{static_cast<std::uint16_t>(bits)});
    for (const std::uint16_t noise : std::array<std::uint16_t, 4>{0, 1, 0x8000, 0xffff}) {
      const std::uint32_t rounded = to_float16_stochastic(x, noise).bits;
      if (is_nan(bits)) {
        ASSERT_TRUE(is_nan(rounded)) << bits;
      } else {
        ASSERT_EQ(rounded, bits) << noise;
      }
    }
  }
}

TEST(Float16, StochasticRoundingKeepsFiniteNumbersFinite) {
  for (const float x : {65504.0f, std::nextafter(65504.0f, 1e6f), 65520.0f, 65535.9f, 65536.0f,
                        1e6f, std::numeric_limits<float>::max()}) {
    for (std::uint32_t noise = 0; noise < kPatterns; ++noise) {
      ASSERT_EQ(to_float16_stochastic(x, static_cast<std::uint16_t>(noise)).bits, 0x7bffu) << x;
      ASSERT_EQ(to_float16_stochastic(-x, static_cast<std::uint16_t>(noise)).bits, 0xfbffu) << x;
    }
  }
}

}  // namespace
}  // namespace millrace
