// SPDX-License-Identifier: Apache-2.0
//
// Trainings that start from another run's weights, train only a part of the network, or end with
// averages of their checkpoints.
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.hpp"
#include "device/environment.hpp"
#include "models/graph.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test.hpp"
#include "tests/train/small_run.hpp"
#include "train/trainer.hpp"

namespace millrace::training {
namespace {

/// Four updates on 8 of 16 images each, that is, two epochs.
run::Run config_of(const fs::path& run) {
  run::Run config;
  config.model.size = "8";
  config.model.image = {8, 8, 3};
  config.optimiser.kind = run::OptimiserKind::Momentum;
  config.learning_rate.base_rate = 0.05;
  config.batch_size = 4;
  config.micro_batches = 2;
  config.iterations = 4;
  config.iterations_per_epoch = 2;
  config.data.train_size = 16;
  config.data.validation_size = 16;
  config.validation_batch_size = 8;
  config.validate_every = 2;
  config.checkpoint_every = 1;
  config.max_checkpoints_to_keep = 0;
  config.seed = 7;
  config.run_directory = run;
  return config;
}

/// Trains in a child process; returns the error, or "".
std::string train_in_child(run::Run config) {
  fs::create_directories(config.run_directory);
  const fs::path report = config.run_directory.string() + ".error";
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      config.pipeline = pipeline::plan_of_one_stage(
          network_of(config), static_cast<std::int32_t>(config.micro_batches));
      const auto data =
          std::make_shared<small::NoiseDataset>(config.model.image, -1, 16, config.model.classes);
      const comm::World world;
      const device::Environment environment(config.threads);
      (void)train(config, {.train = data, .validation = data, .command_line = {}, .notices = {}},
                  world);
    } catch (const std::exception& error) {
      std::ofstream(report) << error.what();
      code = 1;
    }
    std::_Exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  const std::string text = test::read_text(report);
  return text.empty() ? "the process ended badly" : text;
}

using Tensors = std::map<std::string, std::vector<float>>;

Tensors read(const fs::path& checkpoint) {
  const io::CheckpointReader reader(checkpoint);
  Tensors tensors;
  for (const io::TensorInfo& info : reader.tensors()) {
    std::vector<float>& values = tensors[info.name];
    values.resize(static_cast<std::size_t>(info.elements()));
    reader.read(info.name, std::as_writable_bytes(std::span(values)));
  }
  return tensors;
}

fs::path checkpoint_of(const fs::path& run, int iteration) {
  return run / "checkpoints" / ("ckpt-" + std::to_string(iteration));
}

bool is_slot(const std::string& name) { return name.ends_with("/momentum"); }

class FinetuneTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    run::Run config = config_of(source());
    config.averaging = {.last_epochs = {1}, .decays = {0.75}};
    ASSERT_EQ(train_in_child(config), "");
  }
  /// Shared by all tests.
  static const test::TemporaryDirectory& root() {
    static const test::TemporaryDirectory shared;
    return shared;
  }

  /// A run of four updates with averages.
  static fs::path source() { return root() / "source"; }
  /// Starts from the weights of the source.
  static run::Run warm(const std::string& name) {
    run::Run config = config_of(root() / name);
    config.iterations = 1;
    config.init_path = source();
    return config;
  }
};

TEST_F(FinetuneTest, AveragesAreValidatedUnderTheirNames) {
  const std::vector<std::string> rows =
      test::lines_of(test::read_text(source() / "validation.csv"));
  ASSERT_EQ(rows.size(), 5u);
  const std::pair<const char*, const char*> expected[] = {
      {"2,1,", ",,"}, {"4,2,", ",,"}, {"4,2,", ",mean-1-epochs,"}, {"4,2,", ",exponential-0.75,"}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(rows[i + 1].starts_with(expected[i].first)) << rows[i + 1];
    test::expect_in(rows[i + 1], {expected[i].second});
  }
  EXPECT_EQ(io::list_checkpoints(source()).size(), 5u) << "the run's own are those of its cadence";
}

// The error must not blame the learning rate.
TEST_F(FinetuneTest, WeightsThatNothingCanBeComputedWithAreBlamed) {
  const io::CheckpointReader good(checkpoint_of(source(), 4));
  Tensors tensors = read(checkpoint_of(source(), 4));
  tensors.at("fc1/kernel").at(1) = std::nanf("");
  std::vector<io::NamedTensor> changed;
  for (const io::TensorInfo& info : good.tensors())
    changed.push_back({info, std::as_bytes(std::span(tensors.at(info.name)))});
  run::Run config = warm("blamed");
  config.init_path = io::write_checkpoint(root() / "not_finite", good.header(), changed);
  const std::string error = train_in_child(config);
  test::expect_in(error, {"ckpt-4: fc1/kernel[0, 1] is nan: no network can compute with it"});
}

TEST_F(FinetuneTest, ARunBeginsWithWeightsAndStatisticsButNotWithSlots) {
  const run::Run config = warm("warm");
  ASSERT_EQ(train_in_child(config), "");
  const Tensors begin = read(checkpoint_of(config.run_directory, 0));
  const Tensors end = read(checkpoint_of(source(), 4));
  ASSERT_EQ(begin.size(), end.size());
  for (const auto& [name, values] : begin) {
    if (is_slot(name))
      EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << name;
    else
      EXPECT_EQ(values, end.at(name)) << name;
  }
  // A single checkpoint of the run can be used too, and so can an average.
  run::Run other = warm("warm-average");
  other.init_path = source() / "averages" / "mean-1-epochs";
  ASSERT_EQ(train_in_child(other), "");
  EXPECT_EQ(read(checkpoint_of(other.run_directory, 0)).at("fc1/kernel"),
            read(checkpoint_of(other.init_path, 4)).at("fc1/kernel"));
}

TEST_F(FinetuneTest, OtherClassesNeedAFreshLastLayer) {
  run::Run config = warm("classes");
  config.model.classes = 5;
  EXPECT_NE(train_in_child(config), "");
  EXPECT_FALSE(fs::exists(config.run_directory)) << "nothing is left behind";
  config.init_fresh = {"fc1"};
  config.trained_filters = {"fc1"};
  ASSERT_EQ(train_in_child(config), "");
  const Tensors begin = read(checkpoint_of(config.run_directory, 0));
  const Tensors after = read(checkpoint_of(config.run_directory, 1));
  const Tensors end = read(checkpoint_of(source(), 4));
  for (const models::Parameter& parameter : network_of(config).parameters) {
    const std::string& name = parameter.name;
    const bool fresh = name.starts_with("fc1");
    if (fresh) {
      std::vector<float> initial(static_cast<std::size_t>(parameter.elements()));
      models::initialise(parameter, config.seed, initial);
      EXPECT_EQ(begin.at(name), initial) << name;
    } else {
      EXPECT_EQ(begin.at(name), end.at(name)) << name;
    }
    // Only the last layer is trained; running statistics change in all layers.
    EXPECT_EQ(after.at(name) == begin.at(name), !fresh && parameter.trainable()) << name;
  }
}

// The gradients are finite, so the update is made, but its result is never saved.
TEST(DivergedRunTest, SavesNoWeightsThatAreNoNumbers) {
  const test::TemporaryDirectory directory;
  run::Run config = config_of(directory / "run");
  config.iterations = 1;
  config.validation = run::ValidationMode::None;
  config.learning_rate.base_rate = static_cast<double>(std::numeric_limits<float>::max());
  config.optimiser.weight_decay = 1e6;
  const std::string error = train_in_child(config);
  test::expect_in(error, {" is no longer finite"});
  EXPECT_TRUE(fs::exists(checkpoint_of(config.run_directory, 0)));
  EXPECT_FALSE(fs::exists(checkpoint_of(config.run_directory, 1)));
}

}  // namespace
}  // namespace millrace::training
