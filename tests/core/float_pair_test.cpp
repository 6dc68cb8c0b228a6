// SPDX-License-Identifier: Apache-2.0
#include "core/float_pair.hpp"

#include "core/random.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

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
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
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

}  // namespace
}  // namespace millrace
