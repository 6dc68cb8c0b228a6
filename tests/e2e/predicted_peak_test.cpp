// SPDX-License-Identifier: Apache-2.0
//
// The line in which a run compares the peak of memory that it predicted with the one that the
// kernel counted: "Process peak: 63.0 MB (63.9 MB predicted), 63000000 of 63900000 bytes". The run
// measures its base in the same process, but not how much of its code is in memory by then: code
// comes in pieces of 64 kB, and more or fewer of them from start to start. So the bounds are those
// of PlannedMemoryTest: too low by half of kBaseVaries at most, and too high by all of it and 5 %.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <regex>
#include <string>

#include "millrace.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {
namespace {

/// train/memory.hpp
constexpr std::int64_t kBaseVaries = 1'500'000;

/// Expects the line of so many ranks.
void expect_kept(const ProcessResult& run, int ranks) {
  ASSERT_EQ(run.code, 0) << run.output;
  const std::regex line("Process peak: [^,]*, (\\d+) of (\\d+) bytes");
  int seen = 0;
  for (std::sregex_iterator match(run.output.begin(), run.output.end(), line), end; match != end;
       ++match, ++seen) {
    const std::int64_t peak = std::stoll((*match)[1]);
    const std::int64_t predicted = std::stoll((*match)[2]);
    EXPECT_GE(predicted + kBaseVaries / 2, peak) << (*match)[0];
    EXPECT_LE(predicted - kBaseVaries, peak + peak / 20) << (*match)[0];
  }
  EXPECT_EQ(seen, ranks) << run.output;
}

struct Case {
  const char* name;
  int ranks;
  Words options;
};

class PredictedPeakTest : public testing::TestWithParam<Case> {};

TEST_P(PredictedPeakTest, IsWhatTheRunTakes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides that of the training";
  const TemporaryDirectory directory;
  Words options = GetParam().options;
  const bool logs = std::find(options.begin(), options.end(), "--no-logs") == options.end();
  if (logs) options = options + Words{"--run-dir", directory / "run"};
  if (options.front() != "--synthetic-data") options = options + "--generated-data";
  expect_kept(millrace(Words("train --dataset cifar-10 --threads-per-device 1 "
                             "--iterations 3") +
                       options),
              GetParam().ranks);
}

// With many micro-batches a device has many launches to queue and to keep.
INSTANTIATE_TEST_SUITE_P(
    Runs, PredictedPeakTest,
    testing::Values(
        Case{"Small", 1, "--model-size 8 --batch-size 16 --no-validation --no-logs"},
        Case{"Saved", 1, "--model-size 20 --batch-size 32 --no-validation"},
        Case{"Validates", 1, "--model-size 20 --batch-size 4 --valid-batch-size 250 --no-logs"},
        Case{"ManyMicroBatches", 1,
             "--model-size 8 --batch-size 4 --gradients-to-accumulate 128 --no-validation "
             "--no-logs"},
        Case{"ImagesOfTheDevice", 1,
             "--synthetic-data --model-size 8 --batch-size 4 --gradients-to-accumulate 128 "
             "--no-validation --no-logs"},
        Case{"TwoStagesInOneProcess", 1,
             "--model-size 20 --batch-size 4 --shards 2 --ranks 1 --pipeline-depth 32 "
             "--pipeline-splits b2/0 --no-validation --no-logs"},
        Case{"TwoStages", 2,
             "--model-size 8 --batch-size 4 --shards 2 --pipeline-depth 64 --pipeline-splits b2/0 "
             "--no-validation --no-logs"},
        Case{"ManySlots", 2,
             "--model-size 20 --batch-size 1 --shards 2 --pipeline-depth 64 --pipeline-schedule "
             "GPipe --pipeline-splits b2/0 --no-validation --no-logs"},
        Case{"Replicas", 2,
             "--model-size 20 --batch-size 16 --replicas 2 --no-validation --no-logs"},
        Case{"FourStagesSaved", 4,
             "--model-size 20 --batch-size 16 --shards 4 --pipeline-depth 4 --pipeline-splits b1/2 "
             "b2/1 b3/0 --no-validation"}),
    [](const auto& run) { return std::string(run.param.name); });

}  // namespace
}  // namespace millrace::test
