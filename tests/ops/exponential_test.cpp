// SPDX-License-Identifier: Apache-2.0
#include "ops/activation_function.hpp"

#include "tests/support/test.hpp"

namespace millrace::ops {
namespace {

/// Distance from the true value in units in the last place.
double units_off(float x) {
  const double expected = std::exp(static_cast<double>(x));
  int exponent = 0;
  std::frexp(expected, &exponent);
  return std::abs(static_cast<double>(exponential(x)) - expected) / std::ldexp(1.0, exponent - 24);
}

TEST(ExponentialTest, IsExactToAUnitEverywhere) {
  double worst = 0.0;
  for (float x = -87.3f; x < 88.7f; x += 1.0f / 4096.0f) worst = std::max(worst, units_off(x));
  for (float x = 1e-30f; x < 1.0f; x *= 1.01f)
    worst = std::max({worst, units_off(x), units_off(-x)});
  EXPECT_LE(worst, 1.0);
  EXPECT_EQ(exponential(0.0f), 1.0f);
}

TEST(ExponentialTest, HandlesOverflowUnderflowAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exponential(88.8f), kInfinity);
  EXPECT_EQ(exponential(1e30f), kInfinity);
  EXPECT_EQ(exponential(kInfinity), kInfinity);
  for (const float x : {-87.4f, -95.0f, -104.1f}) EXPECT_EQ(exponential(x), 0.0f) << "subnormal";
  EXPECT_EQ(exponential(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace millrace::ops
