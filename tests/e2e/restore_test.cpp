// SPDX-License-Identifier: Apache-2.0
//
// The law: stopping and restoring a training does not change it.
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

struct Case {
  const char* name;
  const char* threads;
  Words options;
};

/// Holds for any number of threads, as long as it does not change.
class RestoreTest : public testing::TestWithParam<Case> {};

TEST_P(RestoreTest, StoppedAndRestoredEqualsUninterrupted) {
  const TemporaryDirectory directory;
  const Words options =
      GetParam().options +
      Words{"--epochs 2 --logs-per-epoch 5 --threads-per-device", GetParam().threads};
  const std::filesystem::path whole = directory / "whole";
  ASSERT_EQ(train(whole, options).code, 0);

  // Stopped in the middle of the first epoch, between two log points, and again in the second
  // epoch.
  const std::filesystem::path parts = directory / "parts";
  expect_end(train(parts, options + "--stop-after 7"), 75);
  expect_end(restore(parts, "--stop-after 6 --pipeline-num-parallel 3"), 75,
             {"Restoring training from latest checkpoint: ", "ckpt-7"});
  // What a restore changes holds for the next one.
  expect_in(read_text(parts / "config.toml"), {"pipeline-num-parallel = 3"});
  expect_end(restore(parts), 0);

  EXPECT_EQ(digest_of(parts), digest_of(whole));
  EXPECT_EQ(timeless_columns(parts / "training.csv"), timeless_columns(whole / "training.csv"));
  EXPECT_EQ(timeless_columns(parts / "validation.csv"), timeless_columns(whole / "validation.csv"));
  const std::string rows = read_text(whole / "training.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 11);  // header and five rows per epoch
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, RestoreTest,
    testing::Values(Case{"Float32", "1", {"--precision 32.32"}},
                    Case{"Bfloat16", "1", {"--precision 16.32"}},
                    Case{"Bfloat16TwoThreads", "2", {"--precision 16.32"}},
                    Case{"GroupNormRecomputed",
                         "1",
                         {"--precision 16.32 --group-norm --groups 8 --xla-recompute"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(LawTest, AValidationThatWasCutShortIsMadeUpFor) {
  const TemporaryDirectory directory;
  const Words options = "--epochs 2";
  ASSERT_EQ(train(directory / "whole", options).code, 0);
  // The state after a signal during the validation of the first epoch: the checkpoint exists, the
  // row does not.
  const std::filesystem::path cut = directory / "cut";
  ASSERT_EQ(train(cut, options + "--stop-after 10").code, 75);
  const std::string rows = read_text(cut / "validation.csv");
  ASSERT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2) << rows;
  std::ofstream(cut / "validation.csv") << rows.substr(0, rows.find('\n') + 1);
  ASSERT_EQ(restore(cut).code, 0);
  EXPECT_EQ(timeless_columns(cut / "validation.csv"),
            timeless_columns(directory / "whole" / "validation.csv"));
  EXPECT_EQ(digest_of(cut), digest_of(directory / "whole"));
}

}  // namespace
}  // namespace millrace::test
