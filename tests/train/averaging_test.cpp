// SPDX-License-Identifier: Apache-2.0
#include "train/averaging.hpp"

#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/file_bytes.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::training {
namespace {

class AveragingTest : public testing::Test {
 protected:
  /// A checkpoint with a kernel of two weights, its slot, a 16-bit statistic and a counter.
  void save(std::int64_t iteration, std::vector<float> kernel, float slot, float mean,
            std::int32_t counter = 0) const {
    const bfloat16 narrow = to_bfloat16(mean);
    const auto of = [](const auto& value) { return std::as_bytes(std::span(&value, 1)); };
    const std::vector<io::NamedTensor> tensors = {
        {{"fc1/kernel", io::TensorRole::Parameter, DType::F32, {1, std::ssize(kernel)}},
         std::as_bytes(std::span(kernel))},
        {{"fc1/kernel/momentum", io::TensorRole::Slot, DType::F32, {1}}, of(slot)},
        {{"b0/norm/moving_mean", io::TensorRole::State, DType::BF16, {1}}, of(narrow)},
        {{"counter", io::TensorRole::State, DType::I32, {}}, of(counter)}};
    io::CheckpointHeader header;
    header.iteration = iteration;
    header.epoch = static_cast<double>(iteration) / 10.0;
    header.model = "tiny";
    header.config_toml = "seed = 3\n";
    (void)io::write_checkpoint(run_ / "checkpoints", header, tensors);
  }

  [[nodiscard]] std::vector<fs::path> all() const { return io::list_checkpoints(run_); }

  static std::vector<float> read(const io::CheckpointReader& checkpoint, const std::string& name) {
    const io::TensorInfo* info = checkpoint.find(name);
    EXPECT_EQ(info->type, DType::F32) << name;
    std::vector<float> values(static_cast<std::size_t>(info->elements()));
    checkpoint.read(name, std::as_writable_bytes(std::span(values)));
    return values;
  }

  const test::TemporaryDirectory directory_;
  const fs::path run_ = directory_.path();
};

// (1 + 2 + 6) / 3 and (-4 + 0 + 1) / 3; the statistic (8 + 4 + 3) / 3.
TEST_F(AveragingTest, AMeanIsTheSumOverTheCount) {
  save(10, {1.0f, -4.0f}, 3.0f, 8.0f, 5);
  save(20, {2.0f, 0.0f}, 3.0f, 4.0f, 6);
  save(30, {6.0f, 1.0f}, 9.0f, 3.0f, 7);
  const fs::path written =
      average_checkpoints(all(), {"mean-3-epochs", AverageMode::Mean, 0.0}, run_);
  EXPECT_EQ(written, run_ / "averages" / "mean-3-epochs" / "checkpoints" / "ckpt-30");
  const io::CheckpointReader checkpoint(written);
  EXPECT_EQ(read(checkpoint, "fc1/kernel"), (std::vector<float>{3.0f, -1.0f}));
  EXPECT_EQ(read(checkpoint, "fc1/kernel/momentum"), std::vector<float>{5.0f});
  EXPECT_EQ(read(checkpoint, "b0/norm/moving_mean"), std::vector<float>{5.0f});
  std::int32_t counter = 0;
  checkpoint.read("counter", std::as_writable_bytes(std::span(&counter, 1)));
  EXPECT_EQ(counter, 7) << "what is not a fraction is that of the last checkpoint";
  EXPECT_EQ(checkpoint.header().iteration, 30);
  EXPECT_EQ(checkpoint.header().config_toml, "seed = 3\n");
}

// m = 8; 3/4 x 8 + 1/4 x 4 = 7; 3/4 x 7 + 1/4 x 1 = 5.5.
TEST_F(AveragingTest, ARunningMeanBeginsWithTheFirst) {
  save(0, {8.0f, 0.0f}, 0.0f, 0.0f);
  save(10, {4.0f, 0.0f}, 0.0f, 0.0f);
  save(20, {1.0f, 16.0f}, 0.0f, 0.0f);
  const io::CheckpointReader checkpoint(
      average_checkpoints(all(), {"exponential-0.75", AverageMode::Exponential, 0.75}, run_));
  EXPECT_EQ(read(checkpoint, "fc1/kernel"), (std::vector<float>{5.5f, 4.0f}));
}

// In float32 the small part of the sum would be lost: 2^25 + 1 + 1 + 2 - 2^25.
TEST_F(AveragingTest, SumsAreDouble) {
  save(10, {33554432.0f}, 0.0f, 0.0f);
  save(20, {1.0f}, 0.0f, 0.0f);
  save(30, {1.0f}, 0.0f, 0.0f);
  save(40, {2.0f - 33554432.0f}, 0.0f, 0.0f);
  const io::CheckpointReader checkpoint(
      average_checkpoints(all(), {"mean", AverageMode::Mean, 0.0}, run_));
  EXPECT_EQ(read(checkpoint, "fc1/kernel"), std::vector<float>{1.0f});
}

// An average is a run directory below the run, whose own list of checkpoints does not change.
TEST_F(AveragingTest, LiesBesideTheCheckpointsAndReplacesItsPredecessor) {
  save(10, {1.0f}, 0.0f, 0.0f);
  save(20, {3.0f}, 0.0f, 0.0f);
  const std::vector<fs::path> before = all();
  const AverageRule rule{"mean", AverageMode::Mean, 0.0};
  const fs::path place = run_ / "averages" / "mean";
  (void)average_checkpoints(before, rule, run_);
  (void)average_checkpoints(std::span(before).first(1), rule, run_);
  EXPECT_EQ(all(), before);
  ASSERT_EQ(io::list_checkpoints(place).size(), 1u);
  std::vector<std::string> complaints;
  const io::CheckpointReader opened = io::open_newest(place, complaints);
  EXPECT_EQ(opened.header().iteration, 10);
  EXPECT_EQ(read(opened, "fc1/kernel"), std::vector<float>{1.0f});
  EXPECT_EQ(test::read_text(place / "config.toml"), "seed = 3\n");
}

TEST_F(AveragingTest, RefusesCheckpointsOfAnotherNetwork) {
  save(10, {1.0f}, 0.0f, 0.0f);
  save(20, {1.0f, 2.0f}, 0.0f, 0.0f);
  expect_error(ErrorKind::Checkpoint,
               {"ckpt-20: cannot be averaged with", "tensor fc1/kernel differs"}, [&] {
                 (void)average_checkpoints(all(), {"mean", AverageMode::Mean, 0.0}, run_);
               });
  EXPECT_FALSE(fs::exists(run_ / "averages"));
}

TEST_F(AveragingTest, NamesCheckpointsThatAreGone) {
  save(10, {1.0f}, 0.0f, 0.0f);
  save(30, {1.0f}, 0.0f, 0.0f);
  const std::vector<std::int64_t> wanted = {10, 20, 30};
  EXPECT_EQ(checkpoints_at(run_, std::vector<std::int64_t>{10, 30}), all());
  expect_error(ErrorKind::Checkpoint, {"1 of 3 checkpoints are missing: ckpt-20"},
               [&] { (void)checkpoints_at(run_, wanted); });
}

TEST_F(AveragingTest, SaysWhatWasAveraged) {
  const std::vector<fs::path> few = {"run/checkpoints/ckpt-10", "run/checkpoints/ckpt-20"};
  EXPECT_EQ(describe_average(few), "the average of 2 checkpoints (ckpt-10, ckpt-20)");
  EXPECT_EQ(describe_average(std::span(few).first(1)), "the average of 1 checkpoint (ckpt-10)");
  std::vector<fs::path> many;
  for (int i = 1; i <= 7; ++i) many.emplace_back("ckpt-" + std::to_string(i));
  EXPECT_EQ(describe_average(many), "the average of 7 checkpoints (ckpt-1 to ckpt-7)");
}

/// Five epochs of 10 updates, with two checkpoints per epoch.
run::Run five_epochs(const fs::path& run) {
  run::Run config;
  config.run_directory = run;
  config.iterations = 50;
  config.iterations_per_epoch = 10;
  config.checkpoint_every = 5;
  config.max_checkpoints_to_keep = 0;
  config.validation = run::ValidationMode::None;
  return config;
}

TEST_F(AveragingTest, TakesWhatLiesInTheLastEpochs) {
  run::Run config = five_epochs(run_);
  config.averaging = {.last_epochs = {2, 1}, .decays = {0.9}};
  const std::vector<PlannedAverage> planned = planned_averages(config);
  ASSERT_EQ(planned.size(), 3u);
  const auto expect = [&](std::size_t i, const char* name, AverageMode mode,
                          const std::vector<std::int64_t>& iterations) {
    EXPECT_EQ(planned[i].rule.name, name);
    EXPECT_EQ(planned[i].rule.mode, mode) << name;
    EXPECT_EQ(planned[i].iterations, iterations) << name;
  };
  expect(0, "mean-2-epochs", AverageMode::Mean, {35, 40, 45, 50});
  expect(1, "mean-1-epochs", AverageMode::Mean, {45, 50});
  expect(2, "exponential-0.9", AverageMode::Exponential,
         {5, 10, 15, 20, 25, 30, 35, 40, 45, 50});  // ckpt-0 is untrained
  EXPECT_EQ(planned[2].rule.decay, 0.9);
  EXPECT_TRUE(planned_averages(five_epochs(run_)).empty());
}

// 3 checkpoints per epoch of 10 updates are one every 3 updates. The last regular one is 48; 50
// would count the end twice.
TEST_F(AveragingTest, LeavesOutAFinalCheckpointOffTheCadence) {
  run::Run config = five_epochs(run_);
  config.checkpoint_every = 3;
  config.averaging = {.last_epochs = {1}, .decays = {}};
  EXPECT_EQ(planned_averages(config).at(0).iterations, (std::vector<std::int64_t>{42, 45, 48}));
  config.checkpoint_every = 40;
  EXPECT_EQ(planned_averages(config).at(0).iterations, (std::vector<std::int64_t>{50}));
}

TEST_F(AveragingTest, RefusesWhatCannotBeHad) {
  const auto refusal = [&](const auto& change) {
    run::Run config = five_epochs(run_);
    config.averaging = {.last_epochs = {2}, .decays = {}};
    change(config);
    return message_of(ErrorKind::Config, [&] { (void)planned_averages(config); });
  };
  EXPECT_EQ(refusal([](run::Run&) {}), "");
  EXPECT_EQ(refusal([](run::Run& c) { c.max_checkpoints_to_keep = 4; }), "");
  EXPECT_EQ(refusal([](run::Run& c) { c.max_checkpoints_to_keep = 3; }),
            "the average mean-2-epochs needs the last 4 checkpoints of the run, but "
            "`max-ckpts-to-keep` 3 keeps only 3: give `max-ckpts-to-keep` 0, which keeps all");
  EXPECT_EQ(refusal([](run::Run& c) { c.averaging.last_epochs = {6}; }),
            "`weight-avg-N` 6: out of range: the run has 5 epochs; give a number from 1 to that");
  EXPECT_EQ(refusal([](run::Run& c) { c.averaging.decays = {1.0}; }),
            "`weight-avg-exp` 1: give a decay between 0 and 1");
  EXPECT_NE(refusal([](run::Run& c) { c.run_directory.clear(); }), "");
  EXPECT_NE(refusal([](run::Run& c) { c.checkpoint_every = 0; }), "");
}

}  // namespace
}  // namespace millrace::training
