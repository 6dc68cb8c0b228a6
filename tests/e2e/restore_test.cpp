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
  std::vector<std::string> options;
};

class RestoreTest : public testing::TestWithParam<Case> {};

TEST_P(RestoreTest, StoppedAndRestoredEqualsUninterrupted) {
  const TemporaryDirectory directory;
  std::vector<std::string> options = GetParam().options;
  options.insert(options.end(), {"--epochs", "2", "--logs-per-epoch", "5"});
  const std::filesystem::path whole = directory / "whole";
  ASSERT_EQ(train(whole, options).code, 0);

  // Stopped in the middle of the first epoch, between two log points, and again in the second.
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
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 11);  // header and five an epoch
}

INSTANTIATE_TEST_SUITE_P(Precisions, RestoreTest,
                         testing::Values(Case{"Float32", {"--precision", "32.32"}},
                                         Case{"Bfloat16", {"--precision", "16.32"}},
                                         Case{"GroupNormRecomputed",
                                              {"--precision", "16.32", "--group-norm", "--groups",
                                               "8", "--xla-recompute"}}),
                         [](const auto& test) { return std::string(test.param.name); });

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
