// SPDX-License-Identifier: Apache-2.0
//
// Ranks on one GPU need its memory together. On the fake device MILLRACE_STAND_IN_GPU is the memory
// of a GPU that all processes share; what it counts as free never changes.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <regex>

#include "mpirun.hpp"
#include "support/variable.hpp"

namespace millrace::test {
namespace {

#ifdef MILLRACE_STAND_IN_GPU
constexpr bool kStandsIn = true;
#else
constexpr bool kStandsIn = false;
#endif

struct SharedDeviceTest : testing::Test {
  void SetUp() override {
    if (!kStandsIn) GTEST_SKIP() << "only the fake device has a GPU that stands in";
  }
};

const Words kSmall =
    "--dataset cifar-10 --generated-data --threads-per-device 1 --model-size 8 --batch-size 8 "
    "--no-validation --no-logs";
const Words kTwoStages = kSmall + "--shards 2 --pipeline-depth 2 --pipeline-splits b2/0";

/// Bytes of device memory that each rank needs.
std::vector<std::int64_t> needs(const Words& options) {
  const ProcessResult plan = millrace(Words("plan --format json") + options, Capture::Output);
  EXPECT_EQ(plan.code, 0) << plan.output;
  std::vector<std::int64_t> bytes;
  if (plan.code != 0) return bytes;
  const nlohmann::json processes = nlohmann::json::parse(plan.output).at("processes");
  for (const auto& process : processes)
    bytes.push_back(process.at("devices").at(0).at("total").get<std::int64_t>());
  return bytes;
}

ProcessResult train_with(std::int64_t free, const Words& options) {
  const Variable bytes("MILLRACE_STAND_IN_GPU", std::to_string(free));
  return millrace(Words("train --iterations 1") + options);
}

TEST_F(SharedDeviceTest, RanksNeedItsMemoryTogether) {
  const std::vector<std::int64_t> bytes = needs(kTwoStages);
  ASSERT_EQ(bytes.size(), 2u);
  expect_end(train_with(bytes[0] + bytes[1], kTwoStages), 0);
  ASSERT_GT(bytes[0] + bytes[1] - 1, std::max(bytes[0], bytes[1])) << "each alone would fit";
  const ProcessResult refused = train_with(bytes[0] + bytes[1] - 1, kTwoStages);
  EXPECT_EQ(refused.code, 2) << refused.output;
  const std::regex line(
      "millrace: error: [^\n]*ranks 0, 1 share the GPU stand-in of \\S+, of whose memory they need "
      "[0-9.]+ MB \\([0-9.]+ MB \\+ [0-9.]+ MB\\), but only [0-9.]+ MB are free: [^\n]*\n");
  EXPECT_EQ(std::distance(std::sregex_iterator(refused.output.begin(), refused.output.end(), line),
                          std::sregex_iterator()),
            1)
      << refused.output;
}

TEST_F(SharedDeviceTest, ARankAloneNeedsOnlyItsOwn) {
  const std::vector<std::int64_t> bytes = needs(kSmall);
  ASSERT_EQ(bytes.size(), 1u);
  expect_end(train_with(bytes[0], kSmall), 0);
  expect_end(train_with(bytes[0] - 1, kSmall), 2, {"the training needs", "of the GPU's memory"});
}

TEST_F(SharedDeviceTest, LimitsOfScratchAreSharesOfItsMemory) {
  const Words half = kSmall + "--available-memory-proportion 0.5 --verbose";
  expect_end(train_with(2'000'000'000, half), 0, {"scratch of at most 1000000000 bytes"});
}

TEST_F(SharedDeviceTest, DoctorSaysWhatIsFree) {
  const Variable bytes("MILLRACE_STAND_IN_GPU", "2000000000");
  expect_end(millrace(Words("doctor")), 0, {"a GPU with 2.00 GB free"});
}

TEST_F(SharedDeviceTest, ItsMemoryIsANumberOfBytes) {
  for (const char* const wrong : {"foo", "-1", "1e9", ""}) {
    const Variable bytes("MILLRACE_STAND_IN_GPU", wrong);
    expect_end(
        millrace(Words("train --iterations 1") + kSmall), 2,
        {fmt::format("MILLRACE_STAND_IN_GPU={}: use a number of bytes, or unset it", wrong)});
  }
}

}  // namespace
}  // namespace millrace::test
