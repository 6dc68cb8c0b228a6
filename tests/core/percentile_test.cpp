// SPDX-License-Identifier: Apache-2.0
#include "core/percentile.hpp"

#include "tests/support/test.hpp"

namespace millrace {
namespace {

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

}  // namespace
}  // namespace millrace
