// SPDX-License-Identifier: Apache-2.0
#include "pipeline/pipeline_plan.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

/// The number of devices of each rank, as rank_of() deals them out.
std::vector<std::int32_t> dealt(const RankMap& map) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(map.ranks));
  std::int32_t before = 0;
  for (std::int32_t r = 0; r < map.replicas; ++r)
    for (std::int32_t d = 0; d < map.devices; ++d) {
      const std::int32_t rank = map.rank_of(r, d);
      EXPECT_GE(rank, before) << "the devices of a rank are neighbors";
      before = rank;
      ++counts.at(static_cast<std::size_t>(rank));
    }
  return counts;
}

TEST(RankMapTest, AnyNumberOfRanksHasAllDevices) {
  for (const std::int32_t devices : {1, 2, 3, 8})
    for (const std::int32_t replicas : {1, 4, 7})
      for (std::int32_t ranks = 1; ranks <= devices * replicas; ++ranks) {
        const RankMap map{.devices = devices, .replicas = replicas, .ranks = ranks};
        const std::vector<std::int32_t> counts = dealt(map);
        const auto [least, most] = std::ranges::minmax(counts);
        EXPECT_LE(most - least, 1);
        EXPECT_GE(least, 1);
        EXPECT_EQ(map.most_devices(), most);
        std::int32_t first = 0;
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(map.first_of(rank), first);
          EXPECT_EQ(map.devices_of(rank), counts[static_cast<std::size_t>(rank)]);
          first += counts[static_cast<std::size_t>(rank)];
        }
        EXPECT_EQ(map.first_of(ranks), map.all_devices());
      }
}

TEST(RankMapTest, UnequalSharesAreThoseGiven) {
  const RankMap map{.devices = 2, .replicas = 4, .ranks = 3, .shares = {4, 1, 3}};
  EXPECT_EQ(dealt(map), map.shares);
  EXPECT_EQ(map.first_of(2), 5);
  EXPECT_EQ(map.devices_of(2), 3);
  EXPECT_EQ(map.most_devices(), 4);
}

TEST(RankMapTest, ThousandsOfRanksDoNotOverflow) {
  const RankMap map{.devices = 64, .replicas = 4096, .ranks = 16384};
  EXPECT_EQ(map.rank_of(4095, 63), 16383);
  EXPECT_EQ(map.first_of(16383), 16383 * 16);
}

}  // namespace
}  // namespace millrace::pipeline
