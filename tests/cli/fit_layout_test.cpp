// SPDX-License-Identifier: Apache-2.0
#include "cli/planning.hpp"

#include "partition/layout.hpp"
#include "support.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

/// A machine whose processes need `rest` bytes besides the stages, far from what resolve() assumes.
train::DeviceUse use_with(const run::Run& config, std::int64_t rest) {
  const models::Graph graph = train::network_of(config);
  const std::vector<std::int64_t> stages = train::sizes_of_stages(graph, config);
  std::map<std::int32_t, std::int64_t> devices;
  for (std::size_t s = 0; s < stages.size(); ++s)
    devices[config.pipeline.schedule.device(static_cast<std::int32_t>(s))] += stages[s];
  std::int64_t largest = 0;
  for (const auto& [device, bytes] : devices) largest = std::max(largest, bytes);
  return {.need = largest + rest, .rest = rest};
}

/// A step as `plan` would simulate it.
double seconds_of(const Resolution& resolution) {
  const run::Run& config = resolution.config;
  const models::Graph graph = train::network_of(config);
  const partition::PlanRequest request = partition::plan_request(config, resolution.layout.request);
  return partition::make_plan(
             graph, partition::estimated_costs(graph, request.program, request.device),
             config.pipeline.ranges, request, without_communication(config.pipeline.schedule))
      .seconds;
}

struct Fitted {
  Resolution resolution;
  train::DeviceUse use;
  [[nodiscard]] bool fits() const {
    return use.need <= resolution.config.device_memory - train::kBaseVaries;
  }
};

Fitted fitted(const std::string& line, std::int64_t rest) {
  const Patch options = train_options(
      "--dataset cifar-10 --synthetic-data --model-size 20 --precision 32.32 --batch-size 16 " +
      line);
  const DatasetFacts facts = published_facts(options);
  const MachineFacts machine{.cores = 2};
  Fitted result;
  result.resolution = fit_layout(machine, resolve(options, facts, machine),
                                 [&](const run::Run& config) { return use_with(config, rest); });
  result.use = use_with(result.resolution.config, rest);
  return result;
}

constexpr const char* kPipeline = "--shards 2 --pipeline-depth 8 --pipeline-splits auto ";

struct FitCase {
  const char* options;
  std::int64_t rest;
};

class FitLayoutTest : public ::testing::TestWithParam<FitCase> {};

// In windows of a few megabytes, too: between what one schedule needs and the next.
TEST_P(FitLayoutTest, AutoFitsAndIsNeverWorseThanANamedSchedule) {
  const auto& [options, rest] = GetParam();
  int compared = 0;
  for (std::int64_t stages = 20'000'000; stages <= 44'000'000; stages += 6'000'000) {
    const std::string line = fmt::format("{}{} --device-memory {} --pipeline-schedule ", kPipeline,
                                         options, stages + rest);
    const Fitted automatic = fitted(line + "auto", rest);
    for (const char* name : {"Sequential", "1F1B", "GPipe", "Grouped", "ZB-H1", "ZB-V", "Looped"}) {
      const Fitted named = fitted(line + name, rest);
      if (!named.fits()) continue;
      ++compared;
      ASSERT_TRUE(automatic.fits()) << line << name;
      EXPECT_LE(seconds_of(automatic.resolution), 1.0011 * seconds_of(named.resolution))
          << line << name;
    }
  }
  EXPECT_GT(compared, 6);
}

INSTANTIATE_TEST_SUITE_P(Rests, FitLayoutTest,
                         ::testing::Values(FitCase{"", 5'000'000}, FitCase{"", 90'000'000},
                                           FitCase{"--recompute auto", 40'000'000}));

TEST(FitLayoutTest, CutsUseWhatTheProcessLeaves) {
  const std::string line = std::string(kPipeline) + "--pipeline-schedule 1F1B --device-memory 80MB";
  // resolve() assumes more than these 20 MB, so that only smaller stages would fit.
  const Fitted narrow = fitted(line, 20'000'000);
  EXPECT_TRUE(narrow.fits());
  const Resolution assumed = resolve_line(
      "--dataset cifar-10 --synthetic-data --model-size 20 --precision 32.32 --batch-size 16 " +
      line);
  EXPECT_LT(seconds_of(narrow.resolution), 0.9 * seconds_of(assumed));
}

TEST(FitLayoutTest, RecomputesNoMoreThanNeeded) {
  const auto seconds = [](std::int64_t rest) {
    const Fitted one = fitted("--recompute auto --device-memory 70MB", rest);
    EXPECT_TRUE(one.fits()) << rest;
    return seconds_of(one.resolution);
  };
  const double without = seconds_of(
      resolve_line("--dataset cifar-10 --synthetic-data --model-size 20 --precision 32.32 "
                   "--batch-size 16"));
  EXPECT_DOUBLE_EQ(seconds(20'000'000), without);
  EXPECT_GT(seconds(48'000'000), 1.005 * without);
}

TEST(FitLayoutTest, TellsWhatWasChosen) {
  const std::string line = std::string(kPipeline) + "--device-memory 80MB --pipeline-schedule auto";
  const Resolution chosen = fitted(line, 30'000'000).resolution;
  const Patch recorded = parse_config(to_toml(chosen.config), "config.toml");
  ASSERT_FALSE(chosen.layout.notices.empty());
  EXPECT_EQ(chosen.layout.notices.front(),
            partition::schedule_notice(*recorded.text("pipeline-schedule"), chosen.config.splits));
  EXPECT_EQ(recorded.text("pipeline-splits"), join(chosen.config.splits, " "));
}

TEST(FitLayoutTest, WhatIsGivenStays) {
  const std::string line =
      "--shards 2 --pipeline-depth 8 --pipeline-splits b3/0 --pipeline-schedule 1F1B "
      "--device-memory 1MB";
  const Fitted given = fitted(line, 30'000'000);
  EXPECT_FALSE(given.fits());
  EXPECT_EQ(given.resolution.config.splits, std::vector<std::string>{"b3/0"});
}

}  // namespace
}  // namespace millrace::cli
