// SPDX-License-Identifier: Apache-2.0
//
// Recipes in reduced form, and commands that need no run.
#include "millrace.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

/// Expects finite losses that are not all equal.
void expect_living_loss(const fs::path& run) {
  const std::vector<double> losses = Table(run / "training.csv")["loss_batch"];
  ASSERT_GE(losses.size(), 3u);
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss)) << loss;
  EXPECT_GT(std::set<double>(losses.begin(), losses.end()).size(), 1u);
}

/// Expects a training without warnings of its numbers, whose last weights give a finite loss.
void expect_sound_end(const ProcessResult& result) {
  expect_not_in(result.output, {"the loss became", "The loss of the last update"});
}

bool validates(const fs::path& recipe) { return recipe.stem().string().ends_with("-eval"); }

/// The recipes that validate what others train.
std::vector<fs::path> evaluations() {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "configs"))
    if (validates(entry.path())) found.push_back(entry.path());
  return found;
}

TEST(SmokeTest, TrainsNoRecipeThatValidates) {
  const TemporaryDirectory directory;
  ASSERT_EQ(evaluations().size(), 2u);
  for (const fs::path& recipe : evaluations())
    for (const auto& [name, how] : {std::pair(recipe.stem().string(), ""),
                                    {recipe.stem().string(), "--smoke"},
                                    {recipe.string(), "--compile-only"}})
      expect_end(millrace({"train --config", name, how, "--run-dir", directory / "run"}), 2,
                 {"trains none: millrace validate --config " + name + " --restore-path RUN\n"});
  EXPECT_FALSE(fs::exists(directory / "run"));
}

TEST(SmokeTest, ValidatesWhatTheOtherRecipesTrain) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(
      millrace({"train --config nvidia-resnet50-fp16-1gpu --synthetic-data --image-size 32 "
                "--batch-size 2 --iterations 1 --no-validation --threads-per-device 1 --run-dir",
                run}),
      0);
  for (const fs::path& recipe : evaluations())
    expect_end(millrace({"validate --config", recipe.stem().string(), "--restore-path", run,
                         "--batch-size 2 --max-eval-steps 1"}),
               0, {"Validation top-1 accuracy [ckpt-1]"});
}

TEST(SmokeTest, RunsEveryRecipe) {
  if (!whole()) GTEST_SKIP() << "takes minutes";
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml" || validates(entry.path())) continue;
    SCOPED_TRACE(entry.path().string());
    const TemporaryDirectory directory;
    const fs::path run = directory / "run";
    const ProcessResult result =
        millrace({"train --config", entry.path().string(), "--smoke --run-dir", run});
    EXPECT_EQ(result.code, 0) << result.output;
    expect_sound_end(result);
    if (result.code == 0) expect_living_loss(run);
  }
}

// The first kernels must not grow until their products overflow.
TEST(SmokeTest, StaysWithinTheRangeOfHalfPrecision) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const ProcessResult result =
      millrace({"train --config nvidia-resnet50-fp16-1gpu --smoke --run-dir", run});
  ASSERT_EQ(result.code, 0) << result.output;
  expect_sound_end(result);
  expect_living_loss(run);
}

}  // namespace
}  // namespace millrace::test
