// SPDX-License-Identifier: Apache-2.0
//
// Run directories written by earlier builds are restored to their recorded state and train on.
#include "faults.hpp"

namespace millrace::test {
namespace {

/// A run of four iterations that was stopped after the second.
struct Golden {
  const char* name;
  const char* digest;  ///< of the checkpoint; later digests depend on the processor
};

class GoldenRunTest : public testing::TestWithParam<Golden> {};

TEST_P(GoldenRunTest, IsRestoredAndTrainsOn) {
  const TemporaryDirectory directory;
  const fs::path archive = fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/runs" /
                           (std::string(GetParam().name) + ".tar.gz");
  ASSERT_EQ(run_process("/usr/bin/env",
                        {"tar", "-xzf", archive.string(), "-C", directory.path().string()})
                .code,
            0);
  const fs::path run = directory / GetParam().name;
  const auto before = newest_in(run);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->iteration, 2);
  EXPECT_EQ(before->digest, GetParam().digest);
  for (const int ranks : {1, 2}) {
    const fs::path copy = directory / std::to_string(ranks);
    fs::copy(run, copy, fs::copy_options::recursive);
    expect_end(millrace(Words{"restore --restore-path", copy.string()} + on_ranks(ranks)), 0);
    const auto after = newest_in(copy);
    ASSERT_TRUE(after);
    EXPECT_EQ(after->iteration, 4);
    EXPECT_NE(after->digest, before->digest);
    EXPECT_EQ(after->digest, newest_in(directory / "1")->digest) << "the layout matters";
    Undisturbed::expect_tidy(copy);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GoldenRunTest,
    testing::Values(
        Golden{"9fad20c", "4f711ad90c34a0f0b041256f1741a1971b623212b1426e397d1a9b1e6d3ce413"},
        Golden{"2026-11-22", "fe329c5ecc37d4f81cbf9f67cc55694375ec3d56040f3ebad0671d5b13522c70"}),
    [](const auto& golden) { return std::string(golden.index == 0 ? "OfACommit" : "OfFormat1"); });

}  // namespace
}  // namespace millrace::test
