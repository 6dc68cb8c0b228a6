// SPDX-License-Identifier: Apache-2.0
//
// Batch statistics that span replicas, over processes. Run by mpirun with one process, it writes
// its losses and digests to the file MILLRACE_TEST_DIGESTS; with several processes, the results
// must equal those in the file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"
#include "tests/train/small_run.hpp"

namespace millrace::train {
namespace {

using namespace small;

/// Losses of some steps, and a digest of the stages of replica 0 in this process.
std::string train(const Layout& layout, const comm::World& world) {
  TrainConfig config = planned(layout);
  config.pipeline.ranks.ranks = world.size();
  Training training(config, world);
  std::vector<double> losses;
  for (std::int64_t i = 0; i < 3; ++i) losses.push_back(training.step().metrics.loss);
  training.session().compare_replicas();
  return fmt::format("{}: {} {}\n", name_of(layout), fmt::join(losses, " "), training.digest());
}

TEST(SpanOverRanks, GivesTheBitsOfOneProcess) {
  const char* path = std::getenv("MILLRACE_TEST_DIGESTS");
  if (path == nullptr) GTEST_SKIP() << "needs mpirun";
  const comm::World world;
  // Replica 0 is always on rank 0. Of three replicas on two ranks, one spans both.
  std::string outcome;
  for (const Layout& layout : {Layout{.replicas = 4, .span = 2}, Layout{.replicas = 4, .span = 4},
                               Layout{.stages = 2, .schedule = "1F1B", .replicas = 4, .span = 2},
                               Layout{.stages = 2,
                               .schedule = "ZB-H1",
                               .recompute = true,
                               .type = DType::BF16,
                               .replicas = 4,
                               .span = 4},
                               Layout{.stages = 4,
                               .schedule = "Looped",
                               .chunks = 2,
                               .type = DType::BF16,
                               .replicas = 4,
                               .span = 2}})
    outcome += train(layout, world);
  const Layout across{.stages = 2, .schedule = "Grouped", .replicas = 3, .span = 3};
  const std::string uneven = world.size() <= 2 ? train(across, world) : "";
  if (world.rank() != 0) return;
  if (world.size() == 1) {
    std::ofstream(path) << outcome << uneven;
    return;
  }
  std::ifstream file(path);
  const std::string expected{std::istreambuf_iterator<char>(file),
                             std::istreambuf_iterator<char>()};
  EXPECT_EQ(outcome + uneven, expected.substr(0, outcome.size() + uneven.size()));
  EXPECT_GT(expected.size(), outcome.size());
}

}  // namespace
}  // namespace millrace::train
