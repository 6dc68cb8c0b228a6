// SPDX-License-Identifier: Apache-2.0
//
// Both 16-bit formats against the definition of their bit patterns, in double.
#include "core/bfloat16.hpp"

#include "core/float16.hpp"
#include "core/float_pair.hpp"
#include "core/percentile.hpp"
#include "core/permute.hpp"
#include "core/random.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

constexpr std::uint32_t kPatterns = 0x10000;
constexpr std::uint32_t kSign = 0x8000u;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
    const std::uint32_t rounded = this->nearest(std::bit_cast<float>(pattern));
    EXPECT_TRUE(this->is_nan(rounded)) << pattern;
    EXPECT_NE(rounded & (1u << (this->kFraction - 1)), 0u) << "signalling: " << pattern;
    EXPECT_EQ(rounded & kSign, (pattern >> 16) & kSign) << pattern;
    for (const std::uint32_t noise : {0u, 0xffffu})
      EXPECT_TRUE(this->is_nan(this->stochastic(std::bit_cast<float>(pattern), noise))) << pattern;
  }
}

// Every 509th pattern of a float, and those around each number and around each midpoint.
TYPED_TEST(Halves, RoundedAsEqualsTheRoundTrip) {
  const auto check = [&](std::uint32_t bits) {
    const float x = std::bit_cast<float>(bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded_as<TypeParam>(x)),
              std::bit_cast<std::uint32_t>(to_float(store_as<TypeParam>(x))))
        << bits;
  };
  for (std::uint64_t bits = 0; bits < 0x1'0000'0000u; bits += 509)
    check(static_cast<std::uint32_t>(bits));
  constexpr std::uint32_t kHalf = 1u << (22 - TestFixture::kFraction);
  for (std::uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    const std::uint32_t number = std::bit_cast<std::uint32_t>(to_float(this->of(pattern)));
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

// ---- float pair ---------------------------------------------------------------------------------

static_assert(sizeof(FloatPair) == 8 && std::is_trivially_copyable_v<FloatPair>);

constexpr double kBound = 0x1p-43;

double value(FloatPair x) { return static_cast<double>(x); }

/// A pair with all its bits in use, of either sign and of size 2^lowest to 2^highest.
FloatPair random_pair(std::uint64_t seed, std::uint64_t i, int lowest, int highest) {
  const auto word = [&](std::uint64_t k) { return mix_bits(mix_bits(seed) + 3 * i + k); };
  const auto part = [](std::uint64_t bits) { return static_cast<float>(bits & 0xffffffu) + 1.0f; };
  const FloatPair fine = FloatPair(part(word(0))) + FloatPair(std::ldexp(part(word(1)), -24));
  const int size =
      lowest + static_cast<int>((word(2) >> 1) % static_cast<std::uint64_t>(highest - lowest));
  // Powers of two change no bit. Two steps, as the first part has up to 25 bits before the point.
  const FloatPair near_one = fine * FloatPair(0x1p-24f);
  return near_one * FloatPair(std::ldexp((word(2) & 1) == 0 ? 1.0f : -1.0f, size));
}

TEST(FloatPairTest, HoldsWholeNumbersUpTo2To48) {
  for (const std::int64_t n :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{-3}, std::int64_t{16777217},
        std::int64_t{401408000}, (std::int64_t{1} << 48) - 1, 1 - (std::int64_t{1} << 48)})
    EXPECT_EQ(value(FloatPair(n)), static_cast<double>(n));
}

TEST(FloatPairTest, RoundsToTheNearestFloat) {
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const FloatPair x = random_pair(1, i, -80, 127);
    EXPECT_EQ(static_cast<float>(x), static_cast<float>(value(x)));
  }
}

/// Draws operands of size 2^lowest to 2^highest. Results outside the range of the bound are left
/// out.
void expect_arithmetic_within_the_bound(int lowest, int highest) {
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const FloatPair x = random_pair(1, i, lowest, highest);
    const FloatPair y = random_pair(2, i, lowest, highest);
    const double a = value(x);
    const double b = value(y);
    const auto near = [](FloatPair got, double want) {
      const double size = std::abs(want);
      return size < 0x1p-80 || size >= 0x1p127 || std::abs(value(got) - want) <= kBound * size;
    };
    ASSERT_TRUE(near(x + y, a + b)) << a << " + " << b << " = " << value(x + y);
    ASSERT_TRUE(near(x - y, a - b)) << a << " - " << b << " = " << value(x - y);
    ASSERT_TRUE(near(x * y, a * b)) << a << " * " << b << " = " << value(x * y);
    ASSERT_TRUE(near(x / y, a / b)) << a << " / " << b << " = " << value(x / y);
    const FloatPair size = a < 0.0 ? -x : x;
    ASSERT_TRUE(near(sqrt(size), std::sqrt(value(size)))) << "sqrt " << value(size);
    ASSERT_EQ(x > y, a > b);
    ASSERT_EQ(x == y, a == b);
  }
}

TEST(FloatPairTest, ArithmeticIsWithinTheBound) { expect_arithmetic_within_the_bound(-20, 20); }
TEST(FloatPairTest, ArithmeticIsWithinTheBoundForLargeAndSmallNumbers) {
  expect_arithmetic_within_the_bound(-80, 127);
}

TEST(FloatPairTest, CancelsWithoutLossOfTheLowerPart) {
  const FloatPair tiny(0x1p-30f);
  const FloatPair x = FloatPair(1.0f) + tiny;
  EXPECT_EQ(value(x - FloatPair(1.0f)), 0x1p-30);
  EXPECT_TRUE(x - tiny == FloatPair(1.0f));
  EXPECT_TRUE(x > FloatPair(1.0f));
}

// A sum of floats alone would stand still at 2^24.
TEST(FloatPairTest, SumsMoreValuesThanAFloatCanCount) {
  FloatPair sum;
  for (int i = 0; i < (1 << 24) + 1000; ++i) sum += FloatPair(1.0f);
  EXPECT_EQ(value(sum), 0x1p24 + 1000.0);
}

TEST(FloatPairTest, KeepsInfinitiesAndNans) {
  const FloatPair infinite(kInfinity);
  const FloatPair largest(std::numeric_limits<float>::max());
  EXPECT_EQ(static_cast<float>(infinite + FloatPair(1.0f)), kInfinity);
  EXPECT_EQ(value(-infinite - largest), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(largest + largest), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(largest * largest), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(sqrt(FloatPair(0.0f))), 0.0);
  EXPECT_EQ(value(sqrt(infinite)), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value(FloatPair(1.0f) / infinite), 0.0);
  EXPECT_EQ(value(FloatPair(1.0f) / FloatPair(0.0f)), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(value(infinite - infinite)));
  EXPECT_TRUE(std::isnan(value(sqrt(FloatPair(-1.0f)))));
}

// ---- percentile ---------------------------------------------------------------------------------

// numpy.quantile([4, 1, 3, 2], ..), and numpy.mean.
TEST(Percentile, IsThatOfNumPy) {
  const std::vector<double> values = {4.0, 1.0, 3.0, 2.0};
  EXPECT_EQ(percentile_of(values, 0.0), 1.0);
  EXPECT_EQ(percentile_of(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile_of(values, 0.9), 3.7);
  EXPECT_DOUBLE_EQ(percentile_of(values, 0.95), 3.85);
  EXPECT_DOUBLE_EQ(percentile_of(values, 0.99), 3.97);
  EXPECT_EQ(percentile_of(values, 1.0), 4.0);
  EXPECT_EQ(mean_of(values), 2.5);
}

TEST(Percentile, OfOneNumberIsThatNumber) {
  const std::array one = {7.0};
  for (const double fraction : {0.0, 0.5, 0.99, 1.0}) EXPECT_EQ(percentile_of(one, fraction), 7.0);
  EXPECT_EQ(mean_of(one), 7.0);
}

// The ranks of 0, 1, .. 100 are their own percentiles.
TEST(Percentile, OfEvenlySpacedNumbersIsTheFraction) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  for (const double percent : {0.0, 1.0, 50.0, 90.0, 95.0, 99.0, 100.0})
    EXPECT_DOUBLE_EQ(percentile_of(values, percent / 100.0), percent);
}

// ---- permute ------------------------------------------------------------------------------------

TEST(PermuteTest, TakesAxesInAnotherOrderAndBack) {
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> shape = {2, 3};
  const std::array<std::size_t, 2> turned = {1, 0};
  const std::vector<float> columns = {1, 4, 2, 5, 3, 6};
  EXPECT_EQ(permuted(matrix, shape, turned), columns);
  EXPECT_EQ(unpermuted(columns, shape, turned), matrix);
}

TEST(PermuteTest, KernelsOfAllChannels) {
  // [out][h][w][in] as [out][in][h][w]
  const std::vector<std::int64_t> shape = {2, 3, 4, 5};
  std::vector<float> values(120);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::array<std::size_t, 4> axes = {0, 3, 1, 2};
  const std::vector<float> theirs = permuted(values, shape, axes);
  for (std::size_t o = 0; o < 2; ++o)
    for (std::size_t h = 0; h < 3; ++h)
      for (std::size_t w = 0; w < 4; ++w)
        for (std::size_t i = 0; i < 5; ++i)
          EXPECT_EQ(theirs[((o * 5 + i) * 3 + h) * 4 + w], values[((o * 3 + h) * 4 + w) * 5 + i]);
  EXPECT_EQ(unpermuted(theirs, shape, axes), values);
}

}  // namespace
}  // namespace millrace
