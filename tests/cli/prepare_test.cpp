// SPDX-License-Identifier: Apache-2.0
#include "cli/prepare.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/run_name.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "io/generate.hpp"
#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests
namespace fs = std::filesystem;

class PrepareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    data_ = root_.path() / "data" / "cifar-10-batches-bin";
    io::generate_cifar10_like(data_, {.train_records = 64, .test_records = 16});
    run_ = root_.path() / "run";
  }

  static Invocation invocation(Command command, const std::string& line,
                               std::map<std::string, std::string> variables = {}) {
    const Environment environment = environment_of(std::move(variables));
    return {.options = load_options(command, words(line), 0, environment),
            .environment = environment,
            .command_line = "millrace"};
  }
  [[nodiscard]] PreparedRun train(const std::string& rest) const {
    return prepare_training(invocation(
        Command::Train, "--data-dir " + (root_.path() / "data").string() +
                            " --dataset cifar-10 --run-dir " + run_.string() + " " + rest));
  }

  TemporaryDirectory root_;
  fs::path data_;
  fs::path run_;
};

TEST_F(PrepareTest, TrainingMakesTheRunDirectoryWithItsConfiguration) {
  const PreparedRun run = train("--batch-size 8 --epochs 2 --warmup-epochs 0");
  EXPECT_EQ(run.config.run_directory, run_);
  EXPECT_EQ(run.config.data.train_size, 64);
  EXPECT_EQ(run.config.data.validation_size, 16);
  EXPECT_EQ(run.config.data.directory, data_);
  EXPECT_EQ(run.config.iterations, 16);
  EXPECT_EQ(run.data.train->size(), 64);
  EXPECT_EQ(run.data.validation->size(), 16);
  std::ostringstream written;
  written << std::ifstream(run_ / "config.toml").rdbuf();
  EXPECT_EQ(written.str(), run.config.resolved_toml);
}

TEST_F(PrepareTest, AMistakeLeavesNoDirectory) {
  EXPECT_EQ(failure_of([&] { (void)train("--batch-size 65"); }).kind, ErrorKind::Config);
  EXPECT_EQ(failure_of([&] { (void)train("--model-size 21"); }).kind, ErrorKind::Config);
  EXPECT_FALSE(fs::exists(run_));
}

TEST_F(PrepareTest, RestoringFindsTheSameConfiguration) {
  train::TrainConfig first;
  {
    const PreparedRun run = train("--batch-size 8 --epochs 2 --seed 5 --weight-decay 0");
    first = run.config;
    const Failure busy = failure_of([&] {
      (void)prepare_restoring(invocation(Command::Restore, "--restore-path " + run_.string()));
    });
    EXPECT_EQ(busy.kind, ErrorKind::Usage) << busy.text;
  }
  const PreparedRun restored = prepare_restoring(invocation(
      Command::Restore, "--restore-path " + run_.string(), {{"DATA_DIR", "/nowhere/cifar"}}));
  EXPECT_EQ(restored.config, first);
}

TEST_F(PrepareTest, RestoringWithoutARunNamesTheFile) {
  const Failure failure = failure_of([&] {
    (void)prepare_restoring(invocation(Command::Restore, "--restore-path " + run_.string()));
  });
  EXPECT_EQ(failure.kind, ErrorKind::Io);
  EXPECT_TRUE(contains(failure.text, (run_ / "config.toml").string())) << failure.text;
  EXPECT_EQ(failure_of([&] { (void)prepare_restoring(invocation(Command::Restore, "")); }).text,
            "--restore-path is missing: which run directory should be used?");
}

TEST_F(PrepareTest, ValidationTakesItsConfigurationFromTheCheckpoint) {
  const PreparedRun run = train("--batch-size 8 --no-validation --seed 5");
  const std::vector<float> values = {1.0F};
  io::NamedTensor tensor;
  tensor.info.name = "fc1/bias";
  tensor.info.shape = {1};
  tensor.data = std::as_bytes(std::span(values));
  io::CheckpointHeader header;
  header.iteration = 3;
  header.config_toml = run.config.resolved_toml;
  const fs::path checkpoint = io::write_checkpoint(run_ / "checkpoints", header, {&tensor, 1});
  for (const fs::path& path : {run_, checkpoint}) {
    const PreparedRun validation = prepare_validation(
        invocation(Command::Validate,
                   "--valid-batch-size 5 --precision 32.32 --restore-path " + path.string()));
    EXPECT_EQ(validation.config.validation, train::ValidationMode::All);
    EXPECT_EQ(validation.config.validation_batch_size, 5);
    EXPECT_EQ(validation.config.precision.activations, DType::F32);
    EXPECT_EQ(validation.config.seed, 5u);
    EXPECT_EQ(validation.data.validation->size(), 16);
    EXPECT_TRUE(validation.config.run_directory.empty());
  }
}

TEST_F(PrepareTest, BenchmarkNeedsNoDataAndLeavesNothing) {
  const PreparedBench bench = prepare_bench(
      invocation(Command::Bench, "--dataset cifar-10 --steps 7 --warmup-steps 2 --batch-size 8"));
  EXPECT_EQ(bench.steps, 7);
  EXPECT_EQ(bench.warmup_steps, 2);
  EXPECT_EQ(bench.run.config.iterations, 9);
  EXPECT_TRUE(bench.run.config.data.synthetic);
  EXPECT_TRUE(bench.run.config.run_directory.empty());
  EXPECT_TRUE(bench.run.notices.empty());
}

}  // namespace
}  // namespace millrace::cli
