// SPDX-License-Identifier: Apache-2.0
//
// A whole run without any update. The trainer creates its own device environment, which is possible
// once per process: hence one test.
#include <gtest/gtest.h>

#include "tests/train/small_run.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

// At the highest scale the sum over 8 micro-batches always overflows, and since the weights never
// change, it keeps overflowing.
TEST(SkippedRun, TwentyInARowEndIt) {
  TrainConfig config = small::config_of({});
  config.pipeline = small::plan_of({}, config);
  config.iterations = kMaxSkippedInRow + 10;
  config.iterations_per_epoch = config.iterations;
  config.log_every = 10;
  config.validation = ValidationMode::None;
  config.loss_scaling.initial = 3.4e38;
  const auto data = std::make_shared<small::NoiseDataset>(config.model.image);
  const comm::World world;
  testing::internal::CaptureStdout();
  try {
    (void)train(config, {.train = data, .validation = data, .command_line = "", .notices = {}},
                world);
    ADD_FAILURE() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 4);
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with(
        "loss, gradients or batch statistics were not finite for 20 iterations in a row (loss "
        "scale 3.4e+38; the first of them: b0/conv/kernel) at iteration 20 "))
        << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
  const std::string printed = testing::internal::GetCapturedStdout();
  EXPECT_NE(printed.find(", skipped updates: 10, loss scale: 3.4e+38"), std::string::npos)
      << printed;
}

}  // namespace
}  // namespace millrace::train
