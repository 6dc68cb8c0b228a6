// SPDX-License-Identifier: Apache-2.0
//
// What is proposed where --device-memory does not suffice can be run as it is printed, and fits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "mpirun.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {
namespace {

using nlohmann::json;

const Words kNetwork =
    "--dataset cifar-10 --generated-data --threads-per-device 1 --model-size 20 --batch-size 32 "
    "--precision 32.32 --no-validation --no-logs";
const Words kPipeline = kNetwork + "--shards 2 --pipeline-depth 4";

json plan_of(const Words& options) {
  const ProcessResult plan = millrace(Words{"plan --format json"} + options, Capture::Output);
  EXPECT_EQ(plan.code, 0) << plan.output;
  return plan.code == 0 ? json::parse(plan.output) : json();
}

/// What the largest process of a layout needs.
std::int64_t need_of(const Words& options) {
  std::int64_t most = 0;
  const json plan = plan_of(options);
  for (const json& process : plan.at("processes"))
    most = std::max(most, process.at("peak").get<std::int64_t>());
  return most;
}

Words within(std::int64_t bytes) { return {"--device-memory", std::to_string(bytes)}; }

/// Removes an option and its values.
void remove(Words& options, const std::string& name) {
  const auto at = std::find(options.begin(), options.end(), name);
  ASSERT_NE(at, options.end()) << name;
  const auto next = std::find_if(at + 1, options.end(),
                                 [](const std::string& word) { return word.starts_with("--"); });
  options.erase(at, next);
}

struct Proposal {
  Words options;
  std::string bytes;  ///< "101 MB"
};

/// The options with what the refusal proposes.
Proposal proposal_of(const std::string& refusal, Words options) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(
      refusal, match,
      std::regex("bytes\\): (--.*?)(?: instead of (--[^\n]*?))? fits with (\\S+ \\S+)\n")))
      << refusal;
  const std::string words = std::regex_replace(match[1].str(), std::regex("'"), "");
  const Words replaced(std::regex_replace(match[2].str(), std::regex(","), "").c_str());
  for (const std::string& name : replaced) remove(options, name);
  return {options + Words(words.c_str()), match[3]};
}

struct Case {
  const char* name;
  Words options;
  double share;  ///< of what they need, as --device-memory
};

class ProposalTest : public testing::TestWithParam<Case> {};

TEST_P(ProposalTest, FitsAsItIsPrinted) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const Words& options = GetParam().options;
  const Words limit =
      within(static_cast<std::int64_t>(GetParam().share * static_cast<double>(need_of(options))));
  const ProcessResult refusal = millrace(Words{"plan"} + options + limit);
  ASSERT_EQ(refusal.code, 2) << refusal.output;
  const Proposal proposal = proposal_of(refusal.output, options);
  const ProcessResult run = millrace(Words{"train --iterations 1"} + proposal.options + limit);
  ASSERT_EQ(run.code, 0) << refusal.output << run.output;
  const double said = std::stod(proposal.bytes);
  double most = 0.0;
  const std::regex predicted("\\(([0-9.]+) MB predicted\\)");
  for (std::sregex_iterator match(run.output.begin(), run.output.end(), predicted), end;
       match != end; ++match)
    most = std::max(most, std::stod((*match)[1]));
  EXPECT_NEAR(said, most, 0.04 * most) << refusal.output << run.output;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ProposalTest,
    testing::Values(
        Case{"Layers", kNetwork + "--recompute-layers b1", 0.93},
        Case{"CutAndLayers", kPipeline + "--pipeline-splits b2/0 --recompute-layers b1", 0.8},
        Case{"Chunks", kPipeline + "--pipeline-schedule Looped --chunks 2 --pipeline-splits auto",
             0.85},
        Case{"Mapping",
             kNetwork + "--pipeline-depth 4 --device-mapping 0 1 1 0 --pipeline-splits b1/1 b2/0 "
                        "b3/0",
             0.85},
        Case{"AutomaticCuts", kPipeline + "--pipeline-schedule GPipe --pipeline-splits auto", 0.7},
        Case{"V", kPipeline + "--pipeline-schedule ZB-V --pipeline-splits auto", 0.55}),
    [](const auto& test) { return std::string(test.param.name); });

// Repeating passes may allow cuts and schedules that are faster than what fits without.
TEST(RecomputationTest, IsChosenTogetherWithCuts) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const Words open = kPipeline + "--pipeline-splits auto";
  const std::int64_t need = need_of(open + "--pipeline-schedule 1F1B --recompute segments");
  const Words limit = within(need + 4'000'000);
  const double segments =
      plan_of(open + limit + "--pipeline-schedule 1F1B --recompute segments").at("seconds");
  for (const char* schedule : {"1F1B", "auto"}) {
    const json chosen =
        plan_of(open + limit + Words{"--recompute auto --pipeline-schedule", schedule});
    EXPECT_LE(chosen.at("seconds").get<double>(), 1.0011 * segments) << schedule;
  }
}

// A search counts what processes need besides their stages, as they are without further options.
TEST(SearchTest, FindsWhatATrainingFitsInto) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  const TemporaryDirectory directory;
  const Words network = "--dataset cifar-10 --generated-data --model-size 20 --precision 32.32";
  const ProcessResult search =
      millrace(Words{"plan --devices 2 --total-batch 256 --memory 150MB"} + network);
  ASSERT_EQ(search.code, 0) << search.output;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(search.output, match, std::regex("The first: ([^\n]*)")))
      << search.output;
  const ProcessResult run =
      millrace(Words{"train --iterations 1 --device-memory 150MB --run-dir", directory / "run"} +
               network + Words(match[1].str().c_str()));
  EXPECT_EQ(run.code, 0) << match[1] << '\n' << run.output;
}

}  // namespace
}  // namespace millrace::test
