// SPDX-License-Identifier: Apache-2.0
#include "train/device_claims.hpp"

#include "tests/support/test.hpp"

namespace millrace::training {
namespace {

constexpr std::int64_t kMega = 1'000'000;

TEST(DeviceClaimsTest, CountForEachDevice) {
  const std::vector<DeviceClaim> fits = {{"0000:17:00.0 of a", 60 * kMega, 100 * kMega},
                                         {"0000:17:00.0 of b", 60 * kMega, 100 * kMega},
                                         {"0000:65:00.0 of a", 60 * kMega, 100 * kMega},
                                         {"0000:17:00.0 of a", 40 * kMega, 100 * kMega}};
  EXPECT_EQ(why_too_large(fits), "");
  std::vector<DeviceClaim> more = fits;
  more[3].need = 41 * kMega;
  EXPECT_EQ(why_too_large(more),
            "ranks 0, 3 share the GPU 0000:17:00.0 of a, of whose memory they need 101 MB (60.0 MB "
            "+ 41.0 MB), but only 100 MB are free: give each rank a GPU of its own "
            "(`select-ipus`), or use fewer ranks on it; a smaller `batch-size`, `recompute` "
            "segments, more `shards` or `precision` 16.32 need less");
  std::vector<DeviceClaim> less = fits;
  less[3].free = 99 * kMega;  // another program came meanwhile
  test::expect_in(why_too_large(less), {"only 99.0 MB are free"});
}

TEST(DeviceClaimsTest, NameTheRankThatIsAloneOnADevice) {
  std::vector<DeviceClaim> ranks = {{"a", kMega, 2 * kMega}, {"b", 3 * kMega, 2 * kMega}};
  EXPECT_EQ(why_too_large(ranks),
            "rank 1 needs 3.00 MB of the GPU's memory but only 2.00 MB are free: a smaller "
            "`batch-size`, `recompute` segments, more `shards` or `precision` 16.32 need less");
  ranks.erase(ranks.begin());
  EXPECT_EQ(why_too_large(ranks).find("the training needs 3.00 MB of the GPU's memory"), 0u);
}

TEST(DeviceClaimsTest, TakeDevicesThatNobodyKnowsForDifferentOnes) {
  EXPECT_EQ(why_too_large(std::vector<DeviceClaim>(2, {"", kMega, kMega})), "");
  const comm::World world(comm::World::Alone{});
  EXPECT_EQ(why_too_large({"a name", kMega, kMega}, world), "");
  EXPECT_NE(why_too_large({"a name", 2 * kMega, kMega}, world), "");
}

}  // namespace
}  // namespace millrace::training
