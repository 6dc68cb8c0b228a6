// SPDX-License-Identifier: Apache-2.0
#include "train/slow_devices.hpp"

#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"

namespace millrace::training {
namespace {

using Shares = std::vector<std::int64_t>;

/// What changed over windows of such shares.
std::vector<SlowDevice> over(SlowDevices& devices, int windows, const Shares& shares) {
  std::vector<SlowDevice> all;
  for (int update = 0; update < windows * SlowDevices::kWindow; ++update)
    for (const SlowDevice& found : devices.add(shares)) all.push_back(found);
  return all;
}

// Three replicas of two stages, of which the second has half of the work.
TEST(SlowDevicesTest, AreComparedWithTheSameStagesOfOthers) {
  SlowDevices devices({.devices = 2, .replicas = 3, .ranks = 6});
  EXPECT_TRUE(over(devices, 3, {600, 300, 620, 310, 580, 290}).empty());
  const std::vector<SlowDevice> found = over(devices, 3, {600, 300, 620, 310, 580, 600});
  ASSERT_EQ(found.size(), 1u) << "said once";
  EXPECT_EQ(found[0].replica, 2);
  EXPECT_EQ(found[0].device, 1);
  EXPECT_TRUE(found[0].slow);
  EXPECT_NEAR(found[0].factor, 600.0 / 305.0, 1e-9);
  // Between the two limits nothing changes.
  EXPECT_TRUE(over(devices, 1, {600, 300, 620, 310, 580, 390}).empty());
  const std::vector<SlowDevice> again = over(devices, 1, {600, 300, 620, 310, 580, 310});
  ASSERT_EQ(again.size(), 1u);
  EXPECT_FALSE(again[0].slow);
  EXPECT_EQ(again[0].device, 1);
}

TEST(SlowDevicesTest, APauseOfOneUpdateIsNothing) {
  SlowDevices devices({.devices = 1, .replicas = 2, .ranks = 2});
  EXPECT_TRUE(devices.add(Shares{100, 990}).empty());
  EXPECT_TRUE(over(devices, 2, {500, 500}).empty());
  EXPECT_EQ(over(devices, 1, {900, 500}).size(), 1u);
}

TEST(SlowDevicesTest, OneReplicaHasNobodyToCompareWith) {
  SlowDevices devices({.devices = 2, .replicas = 1, .ranks = 2});
  EXPECT_TRUE(over(devices, 2, {900, 100}).empty());
  SlowDevices idle({.devices = 1, .replicas = 3, .ranks = 3});
  EXPECT_TRUE(over(idle, 2, {0, 0, 0}).empty());
}

TEST(SpeedsTest, ARunDirectoryThatIsGoneEndsNothing) {
  const test::TemporaryDirectory run;
  const std::vector<double> speeds = {1.0, 0.5};
  EXPECT_NE(keep_speeds(run / "gone", speeds).find("gone/.speeds: No such file"),
            std::string::npos);
  EXPECT_EQ(keep_speeds(run.path(), speeds), "");
  EXPECT_EQ(kept_speeds(run.path()), speeds);
  drop_speeds(run.path());
  EXPECT_TRUE(kept_speeds(run.path()).empty());
}

}  // namespace
}  // namespace millrace::training
