// SPDX-License-Identifier: Apache-2.0
//
// Both 16-bit formats against the definition of their bit patterns, in double.
#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

constexpr std::uint32_t kPatterns = 0x10000;
constexpr std::uint32_t kSign = 0x8000u;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

template <class T>
class Halves : public testing::Test {
 protected:
  static constexpr int kFraction = std::is_same_v<T, bfloat16> ? 7 : 10;  ///< bits
  static constexpr int kBias = std::is_same_v<T, bfloat16> ? 127 : 15;
  static constexpr std::uint32_t kInfinite = (0x7fffu >> kFraction) << kFraction;
  static constexpr std::uint32_t kLargest = kInfinite - 1;

  static T of(std::uint32_t bits) { return T{static_cast<std::uint16_t>(bits)}; }
  static bool is_nan(std::uint32_t bits) { return (bits & 0x7fffu) > kInfinite; }
  /// Value of a bit pattern. Infinity counts as the next power of two, as in the rounding of IEEE
  /// 754.
  static double value_of(std::uint32_t bits) {
    const double sign = (bits & kSign) != 0 ? -1.0 : 1.0;
    const auto exponent = static_cast<int>((bits & 0x7fffu) >> kFraction);
    const auto fraction = static_cast<double>(bits & ((1u << kFraction) - 1));
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - kBias - kFraction);
    return sign * std::ldexp(std::ldexp(1.0, kFraction) + fraction, exponent - kBias - kFraction);
  }
  static std::uint32_t nearest(float x) { return store_as<T>(x).bits; }
  static std::uint32_t stochastic(float x, std::uint32_t noise) {
    const auto word = static_cast<std::uint16_t>(noise);
    if constexpr (std::is_same_v<T, bfloat16>) {
      return to_bfloat16_stochastic(x, word).bits;
    } else {
      return to_float16_stochastic(x, word).bits;
    }
  }
};
using Types = testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(Halves, Types);

TYPED_TEST(Halves, ConvertEveryPattern) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float x = to_float(this->of(bits));
    ASSERT_EQ(std::signbit(x), (bits & kSign) != 0) << bits;
    if (this->is_nan(bits)) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      continue;
    }
    if ((bits & 0x7fffu) == this->kInfinite) {
      ASSERT_TRUE(std::isinf(x)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(x), this->value_of(bits)) << bits;
    }
    ASSERT_EQ(this->nearest(x), bits);
    ASSERT_EQ(store_exact<TypeParam>(x).bits, bits);
  }
}

// Around the midpoint of every two neighbors: the lower one below it, the upper one above it, the
// even one at it.
TYPED_TEST(Halves, RoundToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < this->kInfinite; ++bits) {
    const double middle = 0.5 * (this->value_of(bits) + this->value_of(bits + 1));
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle) << "a float holds it";
    const std::uint32_t even = bits + (bits & 1u);
    for (const float sign : {1.0f, -1.0f}) {
      const std::uint32_t sign_bit = sign < 0 ? kSign : 0u;
      ASSERT_EQ(this->nearest(sign * tie), even | sign_bit) << bits;
      ASSERT_EQ(this->nearest(sign * std::nextafter(tie, 0.0f)), bits | sign_bit) << bits;
      ASSERT_EQ(this->nearest(sign * std::nextafter(tie, kInfinity)), (bits + 1) | sign_bit)
          << bits;
    }
  }
}

TYPED_TEST(Halves, OverflowToInfinityAndKeepNaNs) {
  EXPECT_EQ(this->nearest(std::numeric_limits<float>::max()), this->kInfinite);
  EXPECT_EQ(this->nearest(-kInfinity), kSign | this->kInfinite);
  EXPECT_EQ(this->nearest(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(this->nearest(-0.0f), kSign);
  for (const std::uint32_t pattern : {0x7f800001u, 0x7fc00000u, 0xff80ffffu, 0xffffffffu}) {
    const std::uint32_t rounded = this->nearest(from_bits(pattern));
    EXPECT_TRUE(this->is_nan(rounded)) << pattern;
    EXPECT_NE(rounded & (1u << (this->kFraction - 1)), 0u) << "signalling: " << pattern;
    EXPECT_EQ(rounded & kSign, (pattern >> 16) & kSign) << pattern;
    for (const std::uint32_t noise : {0u, 0xffffu})
      EXPECT_TRUE(this->is_nan(this->stochastic(from_bits(pattern), noise))) << pattern;
  }
}

// Every 509th pattern of a float, and those around each number and around each midpoint.
TYPED_TEST(Halves, RoundedAsEqualsTheRoundTrip) {
  const auto check = [&](std::uint32_t bits) {
    const float x = from_bits(bits);
    ASSERT_EQ(bits_of(rounded_as<TypeParam>(x)), bits_of(to_float(store_as<TypeParam>(x)))) << bits;
  };
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000u; bits += 509)
    check(static_cast<std::uint32_t>(bits));
  constexpr std::uint32_t kHalf = 1u << (22 - TestFixture::kFraction);
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    const std::uint32_t number = bits_of(to_float(this->of(pattern)));
    for (const std::uint32_t step : {0u, 1u, kHalf - 1, kHalf, kHalf + 1, 2 * kHalf - 1}) {
      check(number + step);
      check(number - step);
    }
  }
  EXPECT_EQ(rounded_as<float>(0.1f), 0.1f);
  EXPECT_EQ(store_exact<float>(0.1f), 0.1f);
}

// Exact: the fraction of noise values that round up equals the relative distance from the lower
// neighbor.
TYPED_TEST(Halves, StochasticRoundingIsProportionalToDistance) {
  const std::uint32_t normal = 1u << this->kFraction;
  // Subnormals, the largest subnormal, normals, the next power of two, below the largest number.
  for (const std::uint32_t below : {0u, 1u, 0x55u, normal - 1, normal, 2 * normal - 1, 0x3555u,
                                    0x3c00u, 0x3fffu, this->kLargest - 1}) {
    for (const std::uint32_t parts : {1u, 2048u, 4095u, 5000u, 8191u}) {
      const double low = this->value_of(below);
      const double x =
          low + static_cast<double>(parts) / 8192.0 * (this->value_of(below + 1) - low);
      ASSERT_EQ(static_cast<double>(static_cast<float>(x)), x) << "a float holds it";
      for (const std::uint32_t sign : {0u, kSign}) {
        const auto signed_x = static_cast<float>(sign != 0 ? -x : x);
        std::uint32_t above = 0;
        for (std::uint32_t noise = 0; noise < kPatterns; ++noise) {
          const std::uint32_t rounded = this->stochastic(signed_x, noise) ^ sign;
          if (rounded == below) continue;
          ASSERT_EQ(rounded, below + 1) << noise;
          ++above;
        }
        EXPECT_EQ(above, kPatterns / 8192 * parts) << signed_x;
      }
    }
  }
}

TYPED_TEST(Halves, StochasticRoundingKeepsExactValues) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    if (this->is_nan(bits)) continue;
    const float x = to_float(this->of(bits));
    for (const std::uint32_t noise : {0u, 1u, 0x8000u, 0xffffu})
      ASSERT_EQ(this->stochastic(x, noise), bits) << noise;
  }
}

TYPED_TEST(Halves, StochasticRoundingKeepsFiniteNumbersFinite) {
  const auto largest = static_cast<float>(this->value_of(this->kLargest));
  const auto beyond =
      static_cast<float>(0.5 * (this->value_of(this->kLargest) + this->value_of(this->kInfinite)));
  for (const float x :
       {largest, std::nextafter(largest, kInfinity), beyond, std::numeric_limits<float>::max()}) {
    for (std::uint32_t noise = 0; noise < kPatterns; ++noise) {
      ASSERT_EQ(this->stochastic(x, noise), this->kLargest) << x;
      ASSERT_EQ(this->stochastic(-x, noise), kSign | this->kLargest) << x;
    }
  }
}

}  // namespace
}  // namespace millrace
