// SPDX-License-Identifier: Apache-2.0
//
// --device-memory is kept or refused, and what is proposed where it does not suffice can be run as
// it is printed, and fits.
#include "plans.hpp"

namespace millrace::test {
namespace {

class DeviceMemoryTest : public MemoryTest {};

/// Expects the same single line of a plan and of a run, and returns it.
std::string refusal(const Words& options) {
  std::string line;
  for (const Words& command : {Words("plan"), Words("train --iterations 2")}) {
    const ProcessResult result = millrace(command + options);
    EXPECT_EQ(result.code, 2) << result.output;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.output, match, std::regex("millrace: error: [^\n]*")))
        << result.output;
    line = match[0];
    expect_in(line, {"but --device-memory is"});
  }
  return line;
}

// Automatic cuts stay within it, whole processes included.
TEST_F(DeviceMemoryTest, IsKeptByAutomaticCuts) {
  if (kStaged) GTEST_SKIP() << "the limit is for messages without buffers";
  const Words pipeline = kLarge + "--shards 2 --pipeline-depth 4 --pipeline-splits auto";
  const ProcessResult run =
      millrace(Words{"train --iterations 2 --device-memory 370MB"} + pipeline);
  ASSERT_EQ(run.code, 0) << run.output;
  const std::map<int, std::int64_t> peaks = peaks_in(run.output);
  ASSERT_EQ(peaks.size(), 2u) << run.output;
  for (const auto& [rank, peak] : peaks) EXPECT_LE(peak, 370'000'000) << "rank " << rank;
  (void)refusal(pipeline + "--device-memory 160MB");
}

TEST_F(DeviceMemoryTest, IsKeptByAutomaticSchedules) {
  const TemporaryDirectory directory;
  const ProcessResult run = millrace(
      Words{"train --iterations 2 --device-memory 130MB --pipeline-schedule auto --pipeline-splits "
            "auto --run-dir",
            directory / "run"} +
      kCifar +
      "--model-size 20 --batch-size 16 --precision 32.32 --no-validation --shards 2 "
      "--pipeline-depth 8");
  ASSERT_EQ(run.code, 0) << run.output;
  for (const auto& [rank, peak] : peaks_in(run.output)) EXPECT_LE(peak, 130'000'000) << rank;
  std::smatch chosen;
  ASSERT_TRUE(std::regex_search(run.output, chosen,
                                std::regex("Automatic schedule: ([^,]+), with splits (\\S+)")))
      << run.output;
  const bool listed = chosen[1].str().find(' ') != std::string::npos;
  const std::string recorded = read_text(directory / "run" / "config.toml");
  expect_in(recorded, {"pipeline-schedule = \"" + (listed ? "auto" : chosen[1].str()),
                       "pipeline-splits = \"" + chosen[2].str()});
}

// What a search finds for devices of this machine trains within the same limit. It counts what
// processes need besides their stages, with and without further options.
TEST_F(DeviceMemoryTest, IsKeptByTheLayoutsOfASearch) {
  const TemporaryDirectory directory;
  const std::pair<Words, Words> networks[] = {
      {kCifar + "--no-logs --no-validation --optimiser momentum", {}},
      {"--dataset cifar-10 --generated-data", {"--run-dir", directory / "run"}}};
  for (const auto& [options, more] : networks) {
    const Words network = options + "--model-size 20 --precision 32.32";
    const Words first = first_layout("--devices 2 --total-batch 256 --memory 190MB" + network);
    const ProcessResult run =
        millrace("train --iterations 2 --device-memory 190MB" + network + more + first);
    ASSERT_EQ(run.code, 0) << run.output;
    const std::map<int, std::int64_t> peaks = peaks_in(run.output);
    ASSERT_EQ(peaks.size(), 2u) << run.output;
    for (const auto& [rank, peak] : peaks) EXPECT_LE(peak, 190'000'000) << "rank " << rank;
  }
}

// ---- what a refusal proposes

const Words kNetwork = kCifar +
                       "--model-size 20 --batch-size 32 --precision 32.32 --no-validation "
                       "--no-logs";
const Words kPipeline = kNetwork + "--shards 2 --pipeline-depth 4";

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
  double share;               ///< of what they need, as --device-memory
  std::int64_t limit = 0;     ///< instead of a share; processes keep it to the byte
  const char* remedy = "";    ///< what is proposed
  bool for_messages = false;  ///< a limit that two stages just keep
};

class ProposalTest : public MemoryTest, public testing::WithParamInterface<Case> {};

TEST_P(ProposalTest, FitsAsItIsPrinted) {
  const Case& one = GetParam();
  if (kStaged && one.for_messages) GTEST_SKIP() << "the limit is for messages without buffers";
  const std::int64_t bytes =
      one.limit > 0
          ? one.limit
          : static_cast<std::int64_t>(one.share * static_cast<double>(need_of(one.options)));
  const Words limit = {"--device-memory", std::to_string(bytes)};
  const std::string refused = refusal(one.options + limit);
  expect_in(refused, {one.remedy});
  const Proposal proposal = proposal_of(refused + "\n", one.options);
  const ProcessResult run = millrace(Words{"train --iterations 2"} + proposal.options + limit);
  ASSERT_EQ(run.code, 0) << refused << run.output;
  double most = 0.0;
  const std::regex predicted("\\(([0-9.]+) MB predicted\\)");
  for (std::sregex_iterator match(run.output.begin(), run.output.end(), predicted), end;
       match != end; ++match)
    most = std::max(most, std::stod((*match)[1]));
  EXPECT_NEAR(std::stod(proposal.bytes), most, 0.04 * most) << refused << run.output;
  if (one.limit == 0) return;
  for (const auto& [rank, peak] : peaks_in(run.output)) EXPECT_LE(peak, one.limit) << rank;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ProposalTest,
    testing::Values(
        Case{"Recomputation", kLarge, 0.0, 190'000'000, "--recompute segments fits with"},
        Case{"Batch", kLarge + "--recompute segments", 0.0, 90'000'000, ": --batch-size "},
        Case{"Cuts", kLarge + "--shards 2 --pipeline-depth 4 --pipeline-splits b3/2", 0.0,
             370'000'000, ": --pipeline-splits ", true},
        Case{"Mapping",
             kNetwork + "--pipeline-depth 4 --device-mapping 0 1 1 0 --pipeline-splits b1/1 b2/0 "
                        "b3/0",
             0.85},
        Case{"V", kPipeline + "--pipeline-schedule ZB-V --pipeline-splits auto", 0.55}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace millrace::test
