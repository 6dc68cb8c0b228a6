// SPDX-License-Identifier: Apache-2.0
//
// What plans say of memory, for tests that compare it with runs.
#pragma once

#include <nlohmann/json.hpp>
#include <regex>

#include "mpirun.hpp"
#include "support/sanitizers.hpp"

namespace millrace::test {

/// Tests whose memory a sanitizer's own would hide.
class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  }
};

inline const Words kCifar = "--dataset cifar-10 --generated-data --threads-per-device 1";
inline const Words kImageNet =
    "--dataset imagenet --image-size 64 --generated-data --threads-per-device 1";

inline const Words kLarge = kCifar +
                            "--model-size 20 --batch-size 128 --precision 32.32 --no-logs "
                            "--no-validation";

/// Whether messages between ranks need buffers of the host, as on devices that MPI cannot reach:
/// limits that two stages just keep are too low then.
#ifdef MILLRACE_FAKE_DEVICE
constexpr bool kStaged = true;
#else
constexpr bool kStaged = false;
#endif

/// As in train/memory.hpp: the margin and most of the least base, and by how much the same process
/// differs from start to start.
constexpr std::int64_t kMargin = 52'000'000;
constexpr std::int64_t kBaseVaries = 1'500'000;

/// Expects that each process takes no more than it said at its start, and that what was counted is
/// not much more than what it took, which in part comes from the margin.
inline void expect_within(std::int64_t said, std::int64_t peak, const std::string& where) {
  EXPECT_GE(said, peak) << where << ": too little";
  EXPECT_LE(static_cast<double>(said - kMargin - kBaseVaries), 1.05 * static_cast<double>(peak))
      << where << ": too much";
}

inline nlohmann::json plan_of(const Words& options) {
  const ProcessResult plan = millrace(Words{"plan --format json"} + options, Capture::Output);
  EXPECT_EQ(plan.code, 0) << plan.output;
  return plan.code == 0 ? nlohmann::json::parse(plan.output) : nlohmann::json();
}

/// What the largest process of a layout needs.
inline std::int64_t need_of(const Words& options) {
  std::int64_t most = 0;
  const nlohmann::json plan = plan_of(options);
  for (const nlohmann::json& process : plan.at("processes"))
    most = std::max(most, process.at("peak").get<std::int64_t>());
  return most;
}

/// The layout that a search calls the first.
inline Words first_layout(const Words& search) {
  const ProcessResult result = millrace(Words{"plan"} + search);
  EXPECT_EQ(result.code, 0) << result.output;
  std::smatch match;
  EXPECT_TRUE(std::regex_search(result.output, match, std::regex("The first: ([^\n]*)")))
      << result.output;
  return match.empty() ? Words{} : Words(match[1].str().c_str());
}

}  // namespace millrace::test
