// SPDX-License-Identifier: Apache-2.0
#include "io/dataset.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

std::vector<std::int64_t> indices_of_epoch(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < order.size(); ++i) {
    const SampleOrder::Place place = order.at(epoch * order.size() + i);
    EXPECT_EQ(place.epoch, static_cast<std::uint64_t>(epoch));
    indices.push_back(place.index);
  }
  return indices;
}

TEST(SampleOrderTest, EveryEpochHasEverySampleOnce) {
  for (const std::int64_t size : {1, 2, 3, 7, 64, 1000}) {
    const SampleOrder order = SampleOrder::shuffled(42, size);
    for (const std::int64_t epoch : {0, 1, 5}) {
      std::vector<int> seen(static_cast<std::size_t>(size), 0);
      for (const std::int64_t index : indices_of_epoch(order, epoch)) {
        ASSERT_GE(index, 0);
        ASSERT_LT(index, size);
        ++seen[static_cast<std::size_t>(index)];
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(size), 1));
    }
  }
}

TEST(SampleOrderTest, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  const SampleOrder order = SampleOrder::shuffled(1, 500);
  EXPECT_NE(indices_of_epoch(order, 0), indices_of_epoch(order, 1));
  EXPECT_NE(indices_of_epoch(order, 0), indices_of_epoch(SampleOrder::shuffled(2, 500), 0));
  EXPECT_EQ(indices_of_epoch(order, 3), indices_of_epoch(SampleOrder::shuffled(1, 500), 3));
}

TEST(SampleOrderTest, SequentialCountsUpEveryEpoch) {
  const SampleOrder order = SampleOrder::sequential(3);
  const std::vector<std::int64_t> expected = {0, 1, 2};
  EXPECT_EQ(indices_of_epoch(order, 0), expected);
  EXPECT_EQ(indices_of_epoch(order, 7), expected);
}

TEST(SampleOrderTest, FarPositionsKeepTheirEpoch) {
  const SampleOrder order = SampleOrder::sequential(1'281'167);
  const std::int64_t position = 1'281'167LL * 1'000'000 + 17;
  EXPECT_EQ(order.at(position), (SampleOrder::Place{.epoch = 1'000'000, .index = 17}));
}

TEST(SampleOrderTest, EmptyDataHasNoOrder) {
  expect_error(ErrorKind::Data, {"0 samples", "empty"}, [] { (void)SampleOrder::shuffled(0, 0); });
  expect_error(ErrorKind::Data, {"empty"}, [] { (void)SampleOrder::sequential(-1); });
}

TEST(SampleOrderTest, NegativePositionsAreAnInternalError) {
  expect_error(ErrorKind::Internal, {"position >= 0"},
               [] { (void)SampleOrder::sequential(3).at(-1); });
}

}  // namespace
}  // namespace millrace::io
