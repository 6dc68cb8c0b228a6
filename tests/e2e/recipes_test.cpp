// SPDX-License-Identifier: Apache-2.0
//
// Recipes in reduced form.
#include "millrace.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

/// A smoke run of a recipe. Expects losses that change, without warnings of their numbers; the last
/// weights give a finite loss.
void expect_smoke_run(const std::string& recipe) {
  SCOPED_TRACE(recipe);
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  const ProcessResult result = millrace({"train --config", recipe, "--smoke --run-dir", run});
  ASSERT_EQ(result.code, 0) << result.output;
  expect_not_in(result.output, {"the loss became", "The loss of the last update"});
  EXPECT_GE(expect_sound_losses(run).size(), 3u);
}

TEST(SmokeTest, ValidatesWhatTheOtherRecipesTrain) {
  const TemporaryDirectory directory;
  const fs::path run = directory / "run";
  expect_end(
      millrace({"train --config nvidia-resnet50-fp16-1gpu --synthetic-data --image-size 32 "
                "--batch-size 2 --iterations 1 --no-validation --threads-per-device 1 --run-dir",
                run}),
      0);
  for (const char* recipe : {"nvidia-resnet50-fp16-eval", "nvidia-resnet50-fp32-eval"})
    expect_end(millrace({"validate --config", std::string(recipe), "--restore-path", run,
                         "--batch-size 2 --max-eval-steps 1"}),
               0, {"Validation top-1 accuracy [ckpt-1]"});
}

TEST(SmokeTest, RunsEveryRecipe) {
  if (!whole()) GTEST_SKIP() << "takes minutes";
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MILLRACE_SOURCE_DIR) / "configs")) {
    const std::string file = entry.path().string();
    if (file.ends_with(".toml") && !file.ends_with("-eval.toml")) expect_smoke_run(file);
  }
}

// The first kernels must not grow until their products overflow.
TEST(SmokeTest, StaysWithinTheRangeOfHalfPrecision) {
  expect_smoke_run("nvidia-resnet50-fp16-1gpu");
}

}  // namespace
}  // namespace millrace::test
