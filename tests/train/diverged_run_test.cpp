// SPDX-License-Identifier: Apache-2.0
//
// A whole run whose first update makes the weights overflow float32. The trainer creates its own
// device environment, which is possible once per process: hence one test.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "tests/support/temporary_directory.hpp"
#include "tests/train/small_run.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

// The gradients are finite, so the update is made, but its result is never saved.
TEST(DivergedRun, SavesNoWeightsThatAreNoNumbers) {
  const test::TemporaryDirectory directory;
  TrainConfig config = small::config_of({});
  config.pipeline = small::plan_of({}, config);
  config.iterations = 1;
  config.iterations_per_epoch = 1;
  config.log_every = 1;
  config.max_checkpoints_to_keep = 0;
  config.validation = ValidationMode::None;
  config.schedule = {.base_rate = static_cast<double>(std::numeric_limits<float>::max()),
                     .boundaries = {}};
  config.optimiser.weight_decay = 1e6;
  config.run_directory = directory.path();
  const auto data = std::make_shared<small::NoiseDataset>(config.model.image);
  const comm::World world;
  try {
    (void)train(config, {.train = data, .validation = data, .command_line = "", .notices = {}},
                world);
    ADD_FAILURE() << "the run ended as if all were well";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 4);
    EXPECT_NE(std::string(error.what()).find(" is no longer finite"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "checkpoints/ckpt-1"));
}

}  // namespace
}  // namespace millrace::train
