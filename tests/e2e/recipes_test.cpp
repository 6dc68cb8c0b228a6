// SPDX-License-Identifier: Apache-2.0
//
// Recipes in reduced form, other trainers' command lines, and commands that need no run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>

#include "millrace.hpp"

namespace millrace::test {
namespace {

namespace fs = std::filesystem;

/// The column loss_batch of training.csv.
std::vector<double> losses_of(const fs::path& run) {
  std::istringstream lines(read_text(run / "training.csv"));
  std::vector<double> losses;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream cells(line);
    std::string cell;
    for (int column = 0; column < 5; ++column) std::getline(cells, cell, ',');
    losses.push_back(std::strtod(cell.c_str(), nullptr));
  }
  return losses;
}

/// Expects finite losses that are not all equal.
void expect_living_loss(const fs::path& run) {
  const std::vector<double> losses = losses_of(run);
  ASSERT_GE(losses.size(), 3u);
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss)) << loss;
  EXPECT_GT(std::set<double>(losses.begin(), losses.end()).size(), 1u);
}

TEST(SmokeTest, RunsARecipeByItsName) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const ProcessResult result =
      millrace({"train", "--config", "resnet20-cifar10-10epochs", "--smoke", "--run-dir",
                run.string(), "--threads-per-device", "1"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("smoke: --batch-size 16 instead of 32\n"), std::string::npos)
      << result.output;
  expect_living_loss(run);
}

TEST(SmokeTest, RunsEveryRecipe) {
  if (std::getenv("MILLRACE_LONG_TESTS") == nullptr) GTEST_SKIP() << "takes minutes";
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    SCOPED_TRACE(entry.path().string());
    const TemporaryDirectory directory;
    const fs::path run = directory / "run";
    const ProcessResult result = millrace(
        {"train", "--config", entry.path().string(), "--smoke", "--run-dir", run.string()});
    EXPECT_EQ(result.code, 0) << result.output;
    if (result.code == 0) expect_living_loss(run);
  }
}

TEST(DialectTest, TrainsWithTheWordsOfAnotherTrainer) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const ProcessResult result =
      millrace({"train", "--dialect", "nvidia", "--batch_size=4", "--use_xla", "--nouse_tf_amp",
                "--smoke", "--model-size", "18", "--image-size", "32", "--threads-per-device", "1",
                "--run-dir", run.string()});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("--use_xla has no effect here: kernels are always fused\n"),
            std::string::npos)
      << result.output;
  expect_living_loss(run);
}

TEST(ValidateTest, LooksAtInitialWeightsAndRepeats) {
  const ProcessResult result = millrace({"validate", "--dataset", "cifar-10", "--data-dir",
                                         small_data().string(), "--model-size", "8", "--batch-size",
                                         "100", "--repeat", "2", "--threads-per-device", "1"});
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("validating untrained weights"), std::string::npos) << result.output;
  const std::size_t first = result.output.find("Validation top-1 accuracy [ckpt-0]");
  ASSERT_NE(first, std::string::npos) << result.output;
  EXPECT_NE(result.output.find("Validation top-1 accuracy [ckpt-0]", first + 1), std::string::npos);
}

TEST(TrainTest, ContinuesARunThatItIsTold) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  EXPECT_EQ(train(run, {"--iterations", "4", "--no-validation", "--stop-after", "2"}).code, 75);
  const ProcessResult result = millrace({"train", "--restore-path", run.string()});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "ckpt-4"));
}

TEST(TrainTest, CompilesOnly) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const ProcessResult result = train(run, {"--compile-only"});
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("Total Parameters: 75290\n Batch Size: 64\n"), std::string::npos)
      << result.output;
  EXPECT_FALSE(fs::exists(run));
}

}  // namespace
}  // namespace millrace::test
