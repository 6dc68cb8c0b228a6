// SPDX-License-Identifier: Apache-2.0
#include "core/machine_limits.hpp"

#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"

namespace millrace {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kGiB = 1 << 30;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// A file and its text.
struct File {
  std::string path;
  std::string text;
};

/// Mounts as in /proc/self/mountinfo: version 2 alone; version 1 with the empty tree of version 2
/// beside it, as on machines that have both.
const File kVersion2 = {"proc/self/mountinfo",
                        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
                        "31 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"};
const File kVersion1 = {
    "proc/self/mountinfo",
    "31 22 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"};

struct Expected {
  std::int64_t memory;
  std::string memory_group;
  std::int64_t free;
  std::string free_group;
  double cores;
  std::string cores_group;
};

struct Tree {
  std::string name;
  std::vector<File> files;
  Expected expected;
};

std::string bytes(std::int64_t number) { return std::to_string(number) + "\n"; }

const std::string kPods = "sys/fs/cgroup/kubepods/";

/// The machine has 24 GiB, of which 20 GiB are free.
std::vector<Tree> trees() {
  return {
      {"NoControlGroups", {}, {24 * kGiB, "", 20 * kGiB, "", kNoLimit, ""}},
      {"Unlimited2",
       {kVersion2,
        {"proc/self/cgroup", "0::/user.slice\n"},
        {"sys/fs/cgroup/user.slice/memory.max", "max\n"},
        {"sys/fs/cgroup/user.slice/memory.current", bytes(kGiB)},
        {"sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"}},
       {24 * kGiB, "", 20 * kGiB, "", kNoLimit, ""}},
      {"Unlimited1",
       {kVersion1,
        {"proc/self/cgroup", "4:memory:/\n1:cpu,cpuacct:/\n0::/\n"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"sys/fs/cgroup/memory/memory.usage_in_bytes", bytes(kGiB)},
        {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
        {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"}},
       {24 * kGiB, "", 20 * kGiB, "", kNoLimit, ""}},
      // 1.5 GiB used, of which 512 MiB are cache that can go.
      {"Version2",
       {kVersion2,
        {"proc/self/cgroup", "0::/kubepods/pod7\n"},
        {kPods + "pod7/memory.max", bytes(2 * kGiB)},
        {kPods + "pod7/memory.current", bytes(1536 * kMiB)},
        {kPods + "pod7/memory.stat", "anon 1073741824\ninactive_file 536870912\nactive_file 7\n"},
        {kPods + "pod7/cpu.max", "50000 100000\n"}},
       {2 * kGiB, "/kubepods/pod7", kGiB, "/kubepods/pod7", 0.5, "/kubepods/pod7"}},
      {"Version1",
       {kVersion1,
        {"proc/self/cgroup", "5:cpuset:/\n4:memory:/job/step\n1:cpu,cpuacct:/job/step\n0::/\n"},
        {"sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", bytes(2 * kGiB)},
        {"sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", bytes(1536 * kMiB)},
        {"sys/fs/cgroup/memory/job/step/memory.stat",
         "inactive_file 3\ntotal_cache 900000000\ntotal_inactive_file 536870912\n"},
        {"sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us", "250000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n"}},
       {2 * kGiB, "/job/step", kGiB, "/job/step", 2.5, "/job/step"}},
      // The pod may have 8 GiB but its neighbors take most of the 9 GiB of all pods.
      {"TheTightestAncestor",
       {kVersion2,
        {"proc/self/cgroup", "0::/kubepods/pod7/train\n"},
        {kPods + "pod7/train/memory.max", "max\n"},
        {kPods + "pod7/train/memory.current", bytes(kGiB)},
        {kPods + "pod7/train/cpu.max", "800000 100000\n"},
        {kPods + "pod7/memory.max", bytes(8 * kGiB)},
        {kPods + "pod7/memory.current", bytes(kGiB)},
        {kPods + "pod7/cpu.max", "max 100000\n"},
        {kPods + "memory.max", bytes(9 * kGiB)},
        {kPods + "memory.current", bytes(7 * kGiB)},
        {kPods + "cpu.max", "400000 100000\n"}},
       {8 * kGiB, "/kubepods/pod7", 2 * kGiB, "/kubepods", 4.0, "/kubepods"}},
      {"TheMachineIsTighter",
       {kVersion2,
        {"proc/self/cgroup", "0::/a\n"},
        {"sys/fs/cgroup/a/memory.max", bytes(23 * kGiB)},
        {"sys/fs/cgroup/a/memory.current", bytes(kGiB)}},
       {23 * kGiB, "/a", 20 * kGiB, "", kNoLimit, ""}},
      {"AMountWithASpace",
       {{"proc/self/mountinfo", "31 22 0:26 / /sys/my\\040groups rw - cgroup2 cgroup2 rw\n"},
        {"proc/self/cgroup", "0::/a\n"},
        {"sys/my groups/a/memory.max", bytes(8 * kGiB)},
        {"sys/my groups/a/memory.current", bytes(kGiB)}},
       {8 * kGiB, "/a", 7 * kGiB, "/a", kNoLimit, ""}},
      {"MemoryHigh",
       {kVersion2,
        {"proc/self/cgroup", "0::/a\n"},
        {"sys/fs/cgroup/a/memory.max", bytes(8 * kGiB)},
        {"sys/fs/cgroup/a/memory.high", bytes(6 * kGiB)},
        {"sys/fs/cgroup/a/memory.current", bytes(kGiB)}},
       {6 * kGiB, "/a", 5 * kGiB, "/a", kNoLimit, ""}},
      // A container of version 2 sees its own group as the root.
      {"Container2",
       {kVersion2,
        {"proc/self/cgroup", "0::/\n"},
        {"sys/fs/cgroup/memory.max", bytes(64 * kGiB)},
        {"sys/fs/cgroup/memory.current", bytes(60 * kGiB)},
        {"sys/fs/cgroup/cpu.max", "1600000 100000\n"}},
       {24 * kGiB, "", 4 * kGiB, "/", 16.0, "/"}},
      // One of version 1 sees its group at the mount, but the path on the host.
      {"Container1",
       {{"proc/self/mountinfo",
         "35 31 0:32 /docker/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"},
        {"proc/self/cgroup", "4:memory:/docker/c0ffee\n"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes", bytes(4 * kGiB)},
        {"sys/fs/cgroup/memory/memory.usage_in_bytes", bytes(kGiB)}},
       {4 * kGiB, "/docker/c0ffee", 3 * kGiB, "/docker/c0ffee", kNoLimit, ""}},
      // The mount of a group whose name begins alike is not its.
      {"AnotherContainer1",
       {{"proc/self/mountinfo", "35 31 0:32 /docker/c0 /mnt/memory ro - cgroup cgroup rw,memory\n"},
        {"proc/self/cgroup", "4:memory:/docker/c0ffee\n"},
        {"mnt/memory/memory.limit_in_bytes", bytes(2 * kGiB)},
        {"mnt/c0ffee/memory.limit_in_bytes", bytes(kGiB)}},
       {24 * kGiB, "", 20 * kGiB, "", kNoLimit, ""}},
      // Beside it may be the mount of the namespace outside.
      {"Namespace1",
       {{"proc/self/mountinfo",
         "35 31 0:32 /../.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
         "113 78 0:32 / /mnt rw,relatime - cgroup none rw,memory\n"},
        {"proc/self/cgroup", "4:memory:/\n"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes", bytes(kGiB)},
        {"mnt/memory.limit_in_bytes", bytes(4 * kGiB)},
        {"mnt/memory.usage_in_bytes", bytes(kGiB)}},
       {4 * kGiB, "/", 3 * kGiB, "/", kNoLimit, ""}},
      // Used up, which is not unknown.
      {"Full",
       {kVersion2,
        {"proc/self/cgroup", "0::/a\n"},
        {"sys/fs/cgroup/a/memory.max", bytes(kGiB)},
        {"sys/fs/cgroup/a/memory.current", bytes(kGiB + 4096)}},
       {kGiB, "/a", 1, "/a", kNoLimit, ""}},
  };
}

class LimitsTest : public testing::TestWithParam<Tree> {};

TEST_P(LimitsTest, AreTheTightestOfTheMachineAndAllGroups) {
  const test::TemporaryDirectory root;
  for (const File& file : GetParam().files) test::write_file(root / file.path, file.text);
  test::write_file(root / "proc/meminfo",
                   "MemTotal:       25165824 kB\nMemFree:         1048576 kB\n"
                   "MemAvailable:   20971520 kB\n");
  const MachineLimits limits = read_limits(root.path());
  const Expected& expected = GetParam().expected;
  EXPECT_EQ(limits.machine_memory, 24 * kGiB);
  EXPECT_EQ(limits.machine_free, 20 * kGiB);
  EXPECT_EQ(limits.memory.bytes, expected.memory);
  EXPECT_EQ(limits.memory.group, expected.memory_group);
  EXPECT_EQ(limits.free_memory.bytes, expected.free);
  EXPECT_EQ(limits.free_memory.group, expected.free_group);
  EXPECT_EQ(limits.cores.cores, expected.cores);
  EXPECT_EQ(limits.cores.group, expected.cores_group);
}

INSTANTIATE_TEST_SUITE_P(Trees, LimitsTest, testing::ValuesIn(trees()),
                         [](const auto& tree) { return tree.param.name; });

TEST(LimitsOfThisMachineTest, AreThere) {
  const MachineLimits limits = read_limits();
  EXPECT_GT(limits.free_memory.bytes, 0);
  EXPECT_GE(limits.memory.bytes, limits.free_memory.bytes);
  EXPECT_GE(limits.machine_memory, limits.memory.bytes);
  EXPECT_GE(usable_cores(), 1);
}

TEST(CoresTest, AreWholeAndAtLeastOne) {
  EXPECT_EQ(whole_cores(16, {}), 16);
  EXPECT_EQ(whole_cores(16, {.cores = 0.5, .group = "/a"}), 1);
  EXPECT_EQ(whole_cores(16, {.cores = 2.5, .group = "/a"}), 2);
  EXPECT_EQ(whole_cores(2, {.cores = 2.5, .group = "/a"}), 2);
}

TEST(DescriptionTest, NamesTheSourceOfEachNumber) {
  EXPECT_EQ(describe_cores(16, 16, {}), "16");
  EXPECT_EQ(describe_cores(2, 16, {}), "2 of this machine's 16: the affinity mask has no others");
  EXPECT_EQ(describe_cores(2, 16, {.cores = 2.5, .group = "/kubepods/pod7"}),
            "2 of this machine's 16: the control group /kubepods/pod7 has the time of 2.5");
  EXPECT_EQ(describe_cores(4, 16, {.cores = 8.0, .group = "/a"}),
            "4 of this machine's 16: the affinity mask has no others");
  MachineLimits limits{.machine_memory = 24'000'000'000,
                       .machine_free = 20'000'000'000,
                       .memory = {24'000'000'000, ""},
                       .free_memory = {20'000'000'000, ""},
                       .cores = {}};
  EXPECT_EQ(describe_memory(limits), "20.0 GB free, 24.0 GB in all");
  limits.memory = {2'000'000'000, "/pod7"};
  limits.free_memory = {1'900'000'000, "/pod7"};
  EXPECT_EQ(describe_memory(limits),
            "1.90 GB free in the control group /pod7, 2.00 GB in all; this machine has 24.0 GB");
  limits.free_memory = {1'000'000'000, ""};
  EXPECT_EQ(describe_memory(limits),
            "1.00 GB free, 2.00 GB in all in the control group /pod7; this machine has 24.0 GB");
}

}  // namespace
}  // namespace millrace
