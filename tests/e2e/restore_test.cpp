// SPDX-License-Identifier: Apache-2.0
//
// The law: stopping and restoring a training does not change it.
#include <gtest/gtest.h>

#include <algorithm>

#include "millrace.hpp"

namespace millrace::test {
namespace {

struct Case {
  const char* name;
  const char* threads;
  std::vector<std::string> options;
};

/// Holds for any number of threads, as long as it does not change.
class RestoreTest : public testing::TestWithParam<Case> {};

TEST_P(RestoreTest, StoppedAndRestoredEqualsUninterrupted) {
  const TemporaryDirectory directory;
  std::vector<std::string> options = GetParam().options;
  options.insert(options.end(), {"--epochs", "2", "--logs-per-epoch", "5", "--threads-per-device",
                                 GetParam().threads});
  const std::filesystem::path whole = directory / "whole";
  ASSERT_EQ(train(whole, options).code, 0);

  // Stopped in the middle of the first epoch, between two log points, and again in the second
  // epoch.
  const std::filesystem::path parts = directory / "parts";
  std::vector<std::string> stopped = options;
  stopped.insert(stopped.end(), {"--stop-after", "7"});
  const ProcessResult first = train(parts, stopped);
  ASSERT_EQ(first.code, 75) << first.output;
  const ProcessResult second = millrace({"restore", "--restore-path", parts.string(),
                                         "--stop-after", "6", "--pipeline-num-parallel", "3"});
  ASSERT_EQ(second.code, 75) << second.output;
  EXPECT_NE(second.output.find("Restoring training from latest checkpoint: "), std::string::npos);
  EXPECT_NE(second.output.find("ckpt-7"), std::string::npos) << second.output;
  const ProcessResult third = millrace({"restore", "--restore-path", parts.string()});
  ASSERT_EQ(third.code, 0) << third.output;

  EXPECT_EQ(digest_of(parts), digest_of(whole));
  EXPECT_EQ(timeless_columns(parts / "training.csv"), timeless_columns(whole / "training.csv"));
  EXPECT_EQ(timeless_columns(parts / "validation.csv"), timeless_columns(whole / "validation.csv"));
  const std::string rows = read_text(whole / "training.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 11);  // header and five rows per epoch
}

INSTANTIATE_TEST_SUITE_P(Precisions, RestoreTest,
                         testing::Values(Case{"Float32", "1", {"--precision", "32.32"}},
                                         Case{"Bfloat16", "1", {"--precision", "16.32"}},
                                         Case{"Bfloat16TwoThreads", "2", {"--precision", "16.32"}},
                                         Case{"GroupNormRecomputed",
                                              "1",
                                              {"--precision", "16.32", "--group-norm", "--groups",
                                               "8", "--xla-recompute"}}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(LawTest, AValidationThatWasCutShortIsMadeUpFor) {
  const TemporaryDirectory directory;
  const std::vector<std::string> options = {"--epochs", "2"};
  ASSERT_EQ(train(directory / "whole", options).code, 0);
  // The state after a signal during the validation of the first epoch: the checkpoint exists, the
  // row does not.
  const std::filesystem::path cut = directory / "cut";
  std::vector<std::string> stopped = options;
  stopped.insert(stopped.end(), {"--stop-after", "10"});
  ASSERT_EQ(train(cut, stopped).code, 75);
  const std::string rows = read_text(cut / "validation.csv");
  ASSERT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2) << rows;
  std::ofstream(cut / "validation.csv") << rows.substr(0, rows.find('\n') + 1);
  ASSERT_EQ(millrace({"restore", "--restore-path", cut.string()}).code, 0);
  EXPECT_EQ(timeless_columns(cut / "validation.csv"),
            timeless_columns(directory / "whole" / "validation.csv"));
  EXPECT_EQ(digest_of(cut), digest_of(directory / "whole"));
}

TEST(LawTest, WhatARestoreChangesHoldsForTheNextOne) {
  const TemporaryDirectory directory;
  const std::filesystem::path run = directory / "run";
  ASSERT_EQ(train(run, {"--iterations", "6", "--no-validation", "--stop-after", "2"}).code, 75);
  ASSERT_EQ(millrace({"restore", "--restore-path", run.string(), "--stop-after", "2",
                      "--pipeline-num-parallel", "3"})
                .code,
            75);
  EXPECT_NE(read_text(run / "config.toml").find("pipeline-num-parallel = 3"), std::string::npos);
  ASSERT_EQ(millrace({"restore", "--restore-path", run.string()}).code, 0);
}

TEST(LawTest, LoaderThreadsAndRecomputationLeaveTheDigestAlone) {
  const TemporaryDirectory directory;
  const std::vector<std::string> options = {"--epochs", "1", "--no-validation"};
  ASSERT_EQ(train(directory / "a", options).code, 0);
  std::vector<std::string> other = options;
  other.insert(other.end(), {"--pipeline-num-parallel", "4", "--xla-recompute"});
  ASSERT_EQ(train(directory / "b", other).code, 0);
  EXPECT_EQ(digest_of(directory / "a"), digest_of(directory / "b"));
}

TEST(LawTest, TheDigestIsAlive) {
  const TemporaryDirectory directory;
  const std::vector<std::string> options = {"--iterations", "3", "--no-validation"};
  ASSERT_EQ(train(directory / "a", options).code, 0);
  std::vector<std::string> other = options;
  other.insert(other.end(), {"--seed", "6"});
  ASSERT_EQ(train(directory / "b", other).code, 0);
  EXPECT_NE(digest_of(directory / "a"), digest_of(directory / "b"));
  const std::string digest = digest_of(directory / "a");
  EXPECT_EQ(digest.size(), 65u) << digest;
}

}  // namespace
}  // namespace millrace::test
