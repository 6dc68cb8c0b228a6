// SPDX-License-Identifier: Apache-2.0
//
// The acceptance tests of the IPU trainer, with its own command lines. Each test has a short form
// on a few small images, which always runs, and a whole form on CIFAR-10 with the original lengths,
// which runs with MILLRACE_LONG_TESTS.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <regex>

#include "millrace.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

Words split(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool whole() { return std::getenv("MILLRACE_LONG_TESTS") != nullptr; }
/// "days" also enables trainings that take one core longer than an afternoon.
bool whole_days() { return whole() && std::string(std::getenv("MILLRACE_LONG_TESTS")) == "days"; }

std::filesystem::path cifar10() {
  const char* given = std::getenv("MILLRACE_TEST_DATA");
  const std::filesystem::path shared =
      given != nullptr ? std::filesystem::path(given)
                       : std::filesystem::path(MILLRACE_SOURCE_DIR) / "../shared/data";
  return shared / "cifar-10-batches-bin";
}

/// A run of `train` in its own directory.
struct SeedRun {
  std::shared_ptr<TemporaryDirectory> place = std::make_shared<TemporaryDirectory>();
  ProcessResult result;
  std::filesystem::path run = place->path() / "run";
  [[nodiscard]] Table training() const { return Table(run / "training.csv"); }
  [[nodiscard]] Table validation() const { return Table(run / "validation.csv"); }
  [[nodiscard]] bool prints(const std::string& text) const {
    return result.output.find(text) != std::string::npos;
  }
};

/// The short form uses one core, because other tests run in parallel; the original lines use all.
SeedRun train_seed(const std::string& line, int code = 0) {
  SeedRun run;
  const Words threads = whole() ? Words{} : Words{"--threads-per-device", "1"};
  run.result = millrace(Words{"train", "--dialect", "ipu"} + split(line) + threads +
                        Words{"--run-dir", run.run.string()});
  EXPECT_EQ(run.result.code, code) << line << "\n" << run.result.output;
  return run;
}

/// The whole form uses CIFAR-10, the short one generated images in the same format and the options
/// `less`, which shorten the run.
SeedRun train_cifar(const std::string& line, const std::string& less) {
  const std::string data = "--dataset cifar-10 --seed 1 --data-dir ";
  return whole() ? train_seed(data + cifar10().string() + " " + line)
                 : train_seed(data + small_data().string() + " " + line + " " + less);
}

/// Expects an accuracy from `low` to `high` percent; only in the whole form.
void expect_within(double value, double low, double high) {
  EXPECT_TRUE(std::isfinite(value));
  if (!whole()) return;
  fmt::print("{:.3f}, asked {} to {}\n", value, low, high);
  EXPECT_GE(value, low);
  EXPECT_LE(value, high);
}

void expect_loss_changes(const SeedRun& run) {
  const std::vector<double> losses = run.training()["loss_batch"];
  ASSERT_GE(losses.size(), 2u);
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss) && loss > 0.0) << loss;
  EXPECT_NE(losses.front(), losses.back());
}

class SeedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (whole() && !std::filesystem::exists(cifar10()))
      GTEST_SKIP() << "the whole form needs CIFAR-10 in " << cifar10();
  }
};

TEST_F(SeedTest, HelpNamesCommandAndFamily) {
  EXPECT_NE(millrace({"train", "--help"}).output.find("usage: millrace train"), std::string::npos);
  EXPECT_NE(millrace({"train", "--model", "efficientnet", "--help"}).output.find("EfficientNet"),
            std::string::npos);
  EXPECT_NE(millrace({"validate", "--help"}).output.find("usage: millrace validate"),
            std::string::npos);
}

TEST_F(SeedTest, PlaceAndSuffixAppearInThePath) {
  const TemporaryDirectory directory;
  const std::string logs = (directory / "here").string();
  const ProcessResult result = millrace(
      split("train --dialect ipu --dataset cifar-10 --synthetic-data --iterations 10 "
            "--batches-per-step 10 --threads-per-device 1 --name-suffix ending --log-dir " +
            logs));
  ASSERT_EQ(result.code, 0) << result.output;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(result.output, match, std::regex(R"(\n Saving to (\S+))")));
  const std::filesystem::path run = match[1].str();
  EXPECT_EQ(run.parent_path(), logs);
  EXPECT_NE(run.filename().string().find("_ending_"), std::string::npos) << run;
  EXPECT_TRUE(std::filesystem::exists(run / "training.csv"));
  EXPECT_TRUE(std::filesystem::exists(run / "validation.csv"));
}

TEST_F(SeedTest, ResNet20TenEpochs) {
  const SeedRun run = train_cifar(
      "--model-size 20 --epochs 10 --warmup-epochs 0 --learning-rate-decay 0.1 "
      "--learning-rate-schedule 0.5,0.75,0.875",
      "--model-size 8");
  EXPECT_DOUBLE_EQ(run.training().first("lr"), 0.5);
  EXPECT_DOUBLE_EQ(run.training().last("lr"), 0.0005);
  EXPECT_EQ(std::lround(run.training().last("epoch")), 10);
  expect_loss_changes(run);
  expect_within(run.validation().last("val_acc"), 81, 87);
  expect_within(run.training().last("train_acc_avg"), 81, 87);
}

TEST_F(SeedTest, ResNet20FiftyEpochs) {
  const SeedRun run = train_cifar(
      "--model-size 20 --epochs 50 --batch-size 48 --warmup-epochs 2 --lr-schedule cosine "
      "--label-smoothing 0.05 --base-learning-rate -5 --precision 16.32",
      "--epochs 5 --model-size 8");
  expect_loss_changes(run);
  expect_within(run.validation().last("val_acc", 2), 89, 91);
  expect_within(run.training().last("train_acc_avg"), 96, 98);
  expect_within(run.training().last("loss_batch"), 0.35, 0.45);
}

TEST_F(SeedTest, ResNet20OnTwoReplicas) {
  const SeedRun run = train_cifar(
      "--model-size 20 --epochs 20 --replicas 2 --learning-rate-decay 0.5 "
      "--learning-rate-schedule 0.5,0.9 --warmup-epochs 0",
      "--epochs 4 --model-size 8");
  expect_loss_changes(run);
  expect_within(run.training().last("train_acc_avg"), 85, 95);
}

TEST_F(SeedTest, ResNet50OnOneTwoAndFourDevices) {
  const std::string few = whole() ? "" : " --pipeline-depth 4 --image-size 32";
  const std::string small = whole() ? " --image-size 64" : " --image-size 32";
  const std::string validated = whole() ? " --valid-batch-size 32" : " --no-validation";
  EXPECT_EQ(train_seed("--dataset imagenet --synthetic-data --model-size 50 --batch-size 1 "
                       "--iterations 10" +
                       validated + small)
                .training()
                .last("iteration"),
            10);
  const SeedRun two = train_seed(
      "--dataset imagenet --synthetic-data --model-size 50 --batch-size 2 --shards 2 "
      "--pipeline-depth 256 --pipeline-splits b3/1/relu --xla-recompute --iterations 10 "
      "--no-validation" +
      small + few);
  EXPECT_EQ(two.training().last("iteration"), 10);
  EXPECT_TRUE(two.prints("Total Parameters: 25557032")) << two.result.output;
  EXPECT_EQ(train_seed("--dataset imagenet --synthetic-data --model-size 50 --batch-size 2 "
                       "--shards 2 --replicas 2 --pipeline-schedule Grouped --pipeline-depth 128 "
                       "--pipeline-splits b3/0/relu --xla-recompute --iterations 10 "
                       "--no-validation" +
                       small + few)
                .training()
                .last("iteration"),
            10);
}

TEST_F(SeedTest, ManyOptionsAtOnce) {
  const SeedRun run = train_seed(
      "--dataset cifar-10 --synthetic-data --model-size 14 --precision 32.32 --seed 1234 "
      "--base-learning-rate -4 --batch-size 16 --warmup-epochs 0 --no-stochastic-rounding "
      "--no-hostside-norm --epochs 10 --pipeline-num-parallel 2 --loss-scaling 64 "
      "--weight-decay 0.0001 --BN-decay 0.9 --logs-per-epoch 4 --ckpts-per-epoch 1 "
      "--learning-rate-schedule 0.5 --label-smoothing 0.1" +
      std::string(whole() ? "" : " --epochs 0.1 --logs-per-epoch 64 --no-validation"));
  EXPECT_DOUBLE_EQ(run.training().first("lr"), 1.0);
  if (whole()) {
    EXPECT_EQ(std::lround(run.validation().last("epoch")), 10);
  }
}

/// Two workers of the guide correspond to one run here: 2 x 2 replicas of four stages. Every
/// replica must have the same weights, and the run must be reproducible.
TEST_F(SeedTest, WorkersHoldTheSameWeights) {
  const std::string line =
      "--dataset imagenet --synthetic-data --model-size 50 --shards 4 --replicas 4 "
      "--pipeline-depth 64 --pipeline-splits b1/2/relu b2/3/relu b3/5/relu --batch-size 1 "
      "--iterations 100 --learning-rate-schedule 1 --base-learning-rate -14 "
      "--no-stochastic-rounding --no-validation --seed 1 --weight-check-every 1 --ranks 1 "
      "--image-size 32";
  const std::string less = whole_days() ? ""
                           : whole()    ? " --iterations 3"
                                        : " --iterations 2 --pipeline-depth 4";
  const SeedRun one = train_seed(line + less);
  const SeedRun two = train_seed(line + less + " --ranks 2");
  EXPECT_EQ(digest_of(one.run), digest_of(two.run));
  EXPECT_EQ(one.training().last("loss_avg"), two.training().last("loss_avg"));
}

TEST_F(SeedTest, ResNeXt29) {
  // The original trains ten epochs; two show whether the loss falls.
  const SeedRun run = train_cifar(
      "--model resnext --model-size 29 --batch-size 8 --epochs 2 "
      "--warmup-epochs 0 --learning-rate-schedule 0.5,0.75,0.875",
      "--epochs 1 --model-size 11");
  EXPECT_DOUBLE_EQ(run.training().first("lr"), 0.125);
  EXPECT_DOUBLE_EQ(run.training().last("lr"), 0.000125);
  expect_loss_changes(run);
  if (whole()) {
    EXPECT_LT(run.training().last("loss_avg"), run.training().first("loss_avg"));
  }
}

TEST_F(SeedTest, ResNeXt29FiftyEpochs) {
  if (whole() && !whole_days()) GTEST_SKIP() << "half a day: MILLRACE_LONG_TESTS=days";
  const SeedRun run = train_cifar("--config ipu-resnext29-cifar10-50epochs",
                                  "--epochs 1 --model-size 11 --batch-size 8");
  expect_loss_changes(run);
  expect_within(run.validation().last("val_acc"), 91, 95);
  expect_within(run.training().last("train_acc_avg"), 96, 100);
  expect_within(run.training().last("loss_batch"), 0.35, 0.45);
}

TEST_F(SeedTest, ResNeXt29OnTwoReplicas) {
  if (whole() && !whole_days()) GTEST_SKIP() << "hours: MILLRACE_LONG_TESTS=days";
  const SeedRun run = train_cifar(
      "--model resnext --model-size 29 --batch-size 8 --epochs 20 --replicas 2 "
      "--learning-rate-decay 0.5 --learning-rate-schedule 0.5,0.9 --warmup-epochs 0",
      "--epochs 1 --model-size 11");
  expect_loss_changes(run);
  expect_within(run.training().last("train_acc_avg"), 85, 95);
}

TEST_F(SeedTest, ResNeXt14Sharded) {
  const SeedRun run = train_seed(
      "--model resnext --dataset imagenet --synthetic-data --model-size 14 --shards 2 "
      "--batch-size 1 --iterations 5000 --no-validation --image-size 32 --log-freq 2500" +
      std::string(whole() ? "" : " --iterations 4 --log-freq 2"));
  EXPECT_EQ(run.training().last("iteration"), whole() ? 5000 : 4);
  expect_loss_changes(run);
}

TEST_F(SeedTest, ResNeXt14OnTwoStages) {
  const std::string length = whole_days() ? " --iterations 1000 --batches-per-step 500"
                             : whole()    ? " --iterations 50 --batches-per-step 25"
                                          : " --iterations 4 --pipeline-depth 4 --log-freq 2";
  const SeedRun run = train_seed(
      "--model resnext --dataset imagenet --synthetic-data --model-size 14 --shards 2 "
      "--pipeline-depth 128 --pipeline-splits b2/0/relu --no-validation --image-size 32" +
      length);
  EXPECT_TRUE(run.prints("9411880")) << run.result.output;
  EXPECT_EQ(run.training().last("step"), 2);
}

TEST_F(SeedTest, ResNeXtManyOptions) {
  const SeedRun run = train_seed(
      "--model resnext --dataset cifar-10 --synthetic-data --model-size 11 --precision 32.32 "
      "--seed 1234 --base-learning-rate -5 --batch-size 8 --warmup-epochs 0 "
      "--no-stochastic-rounding --no-hostside-norm --convolution-groups 16 --group-dim 8 "
      "--group-norm --groups 8 --iterations 20 --no-validation --log-freq 10");
  EXPECT_DOUBLE_EQ(run.training().first("lr"), 0.25);
}

TEST_F(SeedTest, SqueezeNetTenEpochs) {
  const SeedRun run = train_cifar(
      "--model squeezenet --use-bypass --lr-schedule polynomial_decay_lr --poly-lr-initial-lr 0.1 "
      "--poly-lr-end-lr 0.0001 --epochs 10",
      "--batch-size 32 --epochs 2");
  EXPECT_TRUE(run.prints("742708")) << run.result.output;
  expect_loss_changes(run);
  expect_within(run.validation().last("val_acc"), 57, 67);
  expect_within(run.training().last("train_acc_avg"), 55, 65);
}

TEST_F(SeedTest, SqueezeNetFourHundredEpochs) {
  if (whole() && !whole_days()) GTEST_SKIP() << "hours: MILLRACE_LONG_TESTS=days";
  const SeedRun run =
      train_cifar("--config ipu-squeezenet-cifar10-400epochs", "--batch-size 32 --epochs 2");
  expect_loss_changes(run);
  expect_within(run.validation().last("val_acc"), 83, 87);
  expect_within(run.training().last("train_acc_avg"), 96, 99);
  expect_within(run.training().last("loss_batch"), 0.35, 0.45);
}

TEST_F(SeedTest, EfficientNetB0OnTwoStages) {
  const SeedRun run = train_seed(
      "--model efficientnet --model-size B0 --dataset imagenet --synthetic-data --shards 2 "
      "--pipeline-depth 256 --batch-size 2 --pipeline-splits block3b --xla-recompute "
      "--iterations 10 --no-validation --image-size 64" +
      std::string(whole() ? "" : " --iterations 1 --image-size 32"));
  EXPECT_EQ(run.training().last("iteration"), whole() ? 10 : 1);
  EXPECT_TRUE(run.prints("5288548") && run.prints("Batch Size: 512")) << run.result.output;
}

TEST_F(SeedTest, EfficientNetWithWiderGroups) {
  const std::string line =
      "--model efficientnet --model-size B0 --dataset imagenet --synthetic-data --shards 4 "
      "--batch-size 8 --pipeline-depth 64 --pipeline-splits block2a/SE block4a block5c "
      "--xla-recompute --pipeline-schedule Grouped --optimiser RMSprop --precision 16.32 "
      "--group-dim 16 --expand-ratio 4 --groups 4 --iterations 10 --no-validation --image-size 64" +
      std::string(whole() ? "" : " --iterations 1 --pipeline-depth 8 --batch-size 2");
  const SeedRun run = train_seed(line);
  EXPECT_TRUE(run.prints("5913796")) << run.result.output;
  expect_loss_changes(
      train_seed(line + " --replicas 2 --use-relu --iterations 2 --log-freq 1 --ranks 1"));
}

TEST_F(SeedTest, EfficientNetForCifar) {
  const SeedRun run = train_seed(
      "--model efficientnet --model-size cifar --dataset cifar-10 --synthetic-data --group-dim 16 "
      "--expand-ratio 4 --iterations 100 --no-validation --log-freq 50" +
      std::string(whole() ? "" : " --iterations 4 --log-freq 2"));
  expect_loss_changes(run);
}

TEST_F(SeedTest, EfficientNetB1OnFourStages) {
  const SeedRun run = train_seed(
      "--model efficientnet --model-size B1 --dataset imagenet --synthetic-data --shards 4 "
      "--pipeline-depth 128 --batch-size 4 --pipeline-splits block2a/c block4a block5c "
      "--iterations 1 --no-validation" +
      std::string(whole() ? "" : " --image-size 64 --pipeline-depth 4"));
  EXPECT_TRUE(run.prints("7794184")) << run.result.output;
  if (whole()) {
    EXPECT_TRUE(run.prints("Batch Size: 512") && run.prints("240x240"));
  }
}

TEST_F(SeedTest, RestoreContinuesAndSaves) {
  const SeedRun run = train_seed(
      "--dataset cifar-10 --synthetic-data --model-size 14 --iterations 20 --stop-after 10 "
      "--no-validation",
      75);
  const ProcessResult restored = millrace({"restore", "--restore-path", run.run.string()});
  EXPECT_EQ(restored.code, 0) << restored.output;
  EXPECT_NE(restored.output.find("Restoring training from latest checkpoint:"), std::string::npos);
  EXPECT_NE(restored.output.find("Saved checkpoint to"), std::string::npos);
}

TEST_F(SeedTest, ValidationPrintsEveryCheckpointInOrder) {
  const SeedRun run = train_cifar(
      "--model-size 14 --iterations 4 --batches-per-step 2 --log-freq 2 --ckpts-per-epoch 781 "
      "--max-ckpts-to-keep 0 --no-validation",
      "--ckpts-per-epoch 10");
  const ProcessResult result = millrace({"validate", "--restore-path", run.run.string()});
  EXPECT_EQ(result.code, 0) << result.output;
  const std::regex line(R"(Validation top-1 accuracy \[ckpt-(\d+)\])");
  Words seen;
  for (std::sregex_iterator i(result.output.begin(), result.output.end(), line), end; i != end; ++i)
    seen.push_back((*i)[1]);
  EXPECT_EQ(seen, (Words{"0", "2", "4"})) << result.output;
}

TEST_F(SeedTest, ProfileOfTheFirstIterationIsWritten) {
  const TemporaryDirectory directory;
  const std::string trace = (directory / "trace.json").string();
  const SeedRun run = train_seed(
      "--dataset cifar-10 --synthetic-data --model-size 14 --iterations 1 --no-validation "
      "--trace " +
      trace);
  EXPECT_NE(read_text(trace).find("traceEvents"), std::string::npos);
  const SeedRun profiled = train_seed(
      "--dataset cifar-10 --synthetic-data --model-size 14 --iterations 1 --no-validation "
      "--gc-profile IPU_PROFILE");
  EXPECT_NE(read_text(profiled.run / "trace.json").find("traceEvents"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
