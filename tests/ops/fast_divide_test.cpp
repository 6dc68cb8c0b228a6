// SPDX-License-Identifier: Apache-2.0
#include "ops/fast_divide.hpp"

#include "tests/support/test.hpp"

namespace millrace::ops {
namespace {

constexpr std::int64_t kEnd = std::int64_t{1} << 31;  ///< of the numbers that are divided fast

/// Whether number / by is right, in both types where they hold the number.
testing::AssertionResult divides(const FastDivide& divide, std::int64_t number) {
  const std::int64_t quotient = number / divide.by();
  const std::int64_t remainder = number % divide.by();
  const auto slow = divide(number);
  bool right = slow.quotient == quotient && slow.remainder == remainder;
  if (number < kEnd) {
    const auto fast = divide(static_cast<std::int32_t>(number));
    right = right && fast.quotient == quotient && fast.remainder == remainder;
  }
  if (right) return testing::AssertionSuccess();
  return testing::AssertionFailure() << number << " / " << divide.by();
}

/// The divisors where a rounded reciprocal is worst: around powers of two, and small ones.
std::vector<std::int64_t> divisors() {
  std::vector<std::int64_t> all;
  for (std::int64_t by = 1; by <= 1100; ++by) all.push_back(by);
  for (int bit = 11; bit <= 33; ++bit)
    for (std::int64_t by = -3; by <= 3; ++by) all.push_back((std::int64_t{1} << bit) + by);
  for (std::int64_t by = 3; by < kEnd; by = by * 7 / 5 + 1) all.push_back(by);
  return all;
}

TEST(FastDivideTest, IsExactAroundMultiples) {
  for (const std::int64_t by : divisors()) {
    const FastDivide divide(by);
    // A quotient is wrong first just below or at a multiple, and sooner for large numbers.
    for (const std::int64_t from : {std::int64_t{0}, kEnd / 3, kEnd / 2, kEnd - 1, 2 * kEnd}) {
      const std::int64_t multiple = from / by * by;
      for (std::int64_t number = multiple - 5 * by; number <= multiple + 5 * by; number += by)
        for (const std::int64_t near : {number - 1, number, number + 1})
          ASSERT_TRUE(near < 0 || divides(divide, near));
    }
    for (const std::int64_t number : {kEnd - 2, kEnd - 1, kEnd, kEnd + 1, by, by - 1, by + 1})
      ASSERT_TRUE(divides(divide, number));
  }
}

TEST(FastDivideTest, IsExactForEverySmallNumber) {
  for (std::int64_t by = 1; by < 300; ++by) {
    const FastDivide divide(by);
    for (std::int64_t number = 0; number < 5000; ++number) ASSERT_TRUE(divides(divide, number));
  }
}

TEST(FastDivideTest, ChoosesTheTypeByTheNumber) {
  const auto bytes = [](auto number) { return sizeof(number); };
  EXPECT_EQ(with_fast_type(0, bytes), 4u);
  EXPECT_EQ(with_fast_type(kEnd - 1, bytes), 4u);
  EXPECT_EQ(with_fast_type(kEnd, bytes), 8u);
}

}  // namespace
}  // namespace millrace::ops
