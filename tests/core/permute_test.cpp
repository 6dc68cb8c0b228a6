// SPDX-License-Identifier: Apache-2.0
#include "core/permute.hpp"

#include "tests/support/test.hpp"

namespace millrace {
namespace {

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
