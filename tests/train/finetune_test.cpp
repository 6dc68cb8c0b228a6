// SPDX-License-Identifier: Apache-2.0
//
// Trainings that start from another run's weights, train only a part of the network, or end with
// averages of their checkpoints.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "models/initialise.hpp"
#include "tests/support/temporary_directory.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::train {
namespace {

namespace fs = std::filesystem;

class NoiseDataset final : public io::Dataset {
 public:
  explicit NoiseDataset(std::int64_t classes) : classes_(classes) {}
  [[nodiscard]] std::string name() const override { return "noise"; }
  [[nodiscard]] std::int64_t size() const override { return 16; }
  [[nodiscard]] Shape image_shape() const override { return {8, 8, 3}; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>((index * 7) % classes_);
  }
  io::Sample read(std::int64_t index, const io::ReadKey&, std::span<std::uint8_t> image,
                  PixelScaling& scaling) const override {
    const RandomStream stream(5, RandomPurpose::SyntheticData, static_cast<std::uint64_t>(index));
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
    scaling = {.mean = {127.5f, 127.5f, 127.5f},
               .scale = {1.0f / 127.5f, 1.0f / 127.5f, 1.0f / 127.5f},
               .real = {.bottom = 8, .right = 8}};
    return io::Sample::Own;
  }

 private:
  std::int64_t classes_;
};

/// Four updates on 8 of 16 images each, that is, two epochs.
TrainConfig config_of(const fs::path& run) {
  TrainConfig config;
  config.model.size = "8";
  config.model.image = {8, 8, 3};
  config.optimiser.kind = OptimiserKind::Momentum;
  config.schedule.base_rate = 0.05;
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
std::string train_in_child(TrainConfig config) {
  fs::create_directories(config.run_directory);
  const fs::path report = config.run_directory.string() + ".error";
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      config.pipeline = pipeline::plan_of_one_stage(
          network_of(config), static_cast<std::int32_t>(config.micro_batches));
      const auto data = std::make_shared<NoiseDataset>(config.model.classes);
      const comm::World world;
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
  std::ifstream file(report);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str().empty() ? "the process ended badly" : text.str();
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

bool is_slot(const std::string& name) { return name.ends_with("/momentum"); }

class FinetuneTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    TrainConfig config = config_of(source());
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
  static fs::path checkpoint(const fs::path& run, int iteration) {
    return run / "checkpoints" / ("ckpt-" + std::to_string(iteration));
  }
  /// Starts from the weights of the source.
  static TrainConfig warm(const std::string& name) {
    TrainConfig config = config_of(root() / name);
    config.iterations = 1;
    config.init_path = source();
    return config;
  }
};

TEST_F(FinetuneTest, AveragesAreThoseOfTheCheckpoints) {
  const fs::path place = source() / "averages" / "mean-1-epochs";
  const Tensors mean = read(checkpoint(place, 4));
  const Tensors third = read(checkpoint(source(), 3));
  const Tensors fourth = read(checkpoint(source(), 4));
  ASSERT_EQ(mean.size(), fourth.size());
  for (const auto& [name, values] : mean)
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double sum =
          static_cast<double>(third.at(name)[i]) + static_cast<double>(fourth.at(name)[i]);
      ASSERT_EQ(values[i], static_cast<float>(sum / 2.0)) << name;
    }
  // 0.75 (0.75 (0.75 (0.75 c0 + 0.25 c1) + 0.25 c2) + 0.25 c3) + 0.25 c4
  Tensors running = read(checkpoint(source(), 0));
  const std::string name = "fc1/kernel";
  std::vector<double> expected(running.at(name).begin(), running.at(name).end());
  for (int k = 1; k <= 4; ++k) {
    const Tensors next = read(checkpoint(source(), k));
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = 0.75 * expected[i] + 0.25 * static_cast<double>(next.at(name)[i]);
  }
  const Tensors average = read(checkpoint(source() / "averages" / "exponential-0.75", 4));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(average.at(name)[i], static_cast<float>(expected[i]));
}

TEST_F(FinetuneTest, AveragesAreValidatedUnderTheirNames) {
  std::vector<std::string> rows;
  std::ifstream file(source() / "validation.csv");
  for (std::string line; std::getline(file, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_TRUE(rows[1].starts_with("2,1,") && rows[1].ends_with(",")) << rows[1];
  EXPECT_TRUE(rows[2].starts_with("4,2,") && rows[2].ends_with(",")) << rows[2];
  EXPECT_TRUE(rows[3].starts_with("4,2,") && rows[3].ends_with(",mean-1-epochs")) << rows[3];
  EXPECT_TRUE(rows[4].starts_with("4,2,") && rows[4].ends_with(",exponential-0.75")) << rows[4];
  EXPECT_EQ(io::list_checkpoints(source()).size(), 5u) << "the run's own are those of its cadence";
}

TEST_F(FinetuneTest, AveragesThatCannotBeHadAreRefusedBeforeTraining) {
  TrainConfig config = config_of(root() / "few");
  config.max_checkpoints_to_keep = 1;
  config.averaging = {.last_epochs = {1}, .decays = {}};
  EXPECT_EQ(train_in_child(config),
            "the average mean-1-epochs needs the last 2 checkpoints of the run, but "
            "--max-ckpts-to-keep 1 keeps only 1: give --max-ckpts-to-keep 0, which keeps all");
  EXPECT_FALSE(fs::exists(root() / "few")) << "nothing is left behind";
}

// The error must not blame the learning rate.
TEST_F(FinetuneTest, WeightsThatNothingCanBeComputedWithAreBlamed) {
  const io::CheckpointReader good(checkpoint(source(), 4));
  Tensors tensors = read(checkpoint(source(), 4));
  tensors.at("fc1/kernel").at(1) = std::nanf("");
  std::vector<io::NamedTensor> changed;
  for (const io::TensorInfo& info : good.tensors())
    changed.push_back({info, std::as_bytes(std::span(tensors.at(info.name)))});
  TrainConfig config = warm("blamed");
  config.init_path = io::write_checkpoint(root() / "not_finite", good.header(), changed);
  const std::string error = train_in_child(config);
  EXPECT_NE(error.find("ckpt-4: fc1/kernel[0, 1] is nan: no network can compute with it"),
            std::string::npos)
      << error;
}

TEST_F(FinetuneTest, ARunBeginsWithWeightsAndStatisticsButNotWithSlots) {
  const TrainConfig config = warm("warm");
  ASSERT_EQ(train_in_child(config), "");
  const Tensors begin = read(checkpoint(config.run_directory, 0));
  const Tensors end = read(checkpoint(source(), 4));
  ASSERT_EQ(begin.size(), end.size());
  for (const auto& [name, values] : begin) {
    if (is_slot(name))
      EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f)) << name;
    else
      EXPECT_EQ(values, end.at(name)) << name;
  }
  // A single checkpoint of the run can be used too, and so can an average.
  TrainConfig other = warm("warm-average");
  other.init_path = source() / "averages" / "mean-1-epochs";
  ASSERT_EQ(train_in_child(other), "");
  EXPECT_EQ(read(checkpoint(other.run_directory, 0)).at("fc1/kernel"),
            read(checkpoint(other.init_path, 4)).at("fc1/kernel"));
}

TEST_F(FinetuneTest, OtherClassesNeedAFreshLastLayer) {
  TrainConfig config = warm("classes");
  config.model.classes = 5;
  const std::string error = train_in_child(config);
  EXPECT_NE(
      error.find(
          "fc1/kernel has shape 10x64 in the checkpoint but needs 5x64, fc1/bias has shape 10 in "
          "the checkpoint but needs 5; name the parameters to initialize with --init-fresh"),
      std::string::npos)
      << error;
  EXPECT_FALSE(fs::exists(config.run_directory)) << "nothing is left behind";
  config.init_fresh = {"fc1"};
  config.trained_filters = {"fc1"};
  ASSERT_EQ(train_in_child(config), "");
  const Tensors begin = read(checkpoint(config.run_directory, 0));
  const Tensors after = read(checkpoint(config.run_directory, 1));
  const Tensors end = read(checkpoint(source(), 4));
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

}  // namespace
}  // namespace millrace::train
