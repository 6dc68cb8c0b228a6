// SPDX-License-Identifier: Apache-2.0
//
// The acceptance tests of the IPU trainer, with its own command lines. Each test has a short form
// on a few small images, which always runs, and a whole form on CIFAR-10 with the original lengths,
// which runs with MILLRACE_LONG_TESTS.
#include <fmt/format.h>
#include <regex>

#include "millrace.hpp"
#include "run_tables.hpp"

namespace millrace::test {
namespace {

/// "days" also enables trainings that take one core longer than an afternoon.
bool whole_days() { return whole() && std::string(std::getenv("MILLRACE_LONG_TESTS")) == "days"; }

fs::path cifar10() { return shared_data() / "cifar-10-batches-bin"; }

/// A run of `train` in its own directory.
struct SeedRun {
  std::shared_ptr<TemporaryDirectory> place = std::make_shared<TemporaryDirectory>();
  ProcessResult result;
  fs::path run = place->path() / "run";
  [[nodiscard]] Table training() const { return Table(run / "training.csv"); }
  [[nodiscard]] Table validation() const { return Table(run / "validation.csv"); }
};

/// The short form uses one core, because other tests run in parallel; the original lines use all.
SeedRun train_seed(const Words& line, int code = 0) {
  SeedRun run;
  run.result =
      millrace("train --dialect ipu" + line + (whole() ? Words{} : "--threads-per-device 1") +
               Words{"--run-dir", run.run});
  EXPECT_EQ(run.result.code, code) << run.result.output;
  return run;
}

/// Expects sound losses that change from row to row.
void expect_loss(const SeedRun& run) {
  const std::vector<double> losses = run.training()["loss_batch"];
  ASSERT_FALSE(losses.empty());
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss) && loss >= 0.0) << loss;
  if (losses.size() > 1) {
    EXPECT_NE(losses.front(), losses.back());
  }
}

/// A value from `low` to `high`; only asked for in the whole form.
struct Window {
  double low = 0.0;
  double high = 0.0;
  void expect(double value) const {
    EXPECT_TRUE(std::isfinite(value));
    if (!whole()) return;
    fmt::print("{:.3f}, asked {} to {}\n", value, low, high);
    EXPECT_GE(value, low);
    EXPECT_LE(value, high);
  }
};

/// One of the trainer's command lines and what it gives.
struct Line {
  const char* name;
  const char* line;
  const char* less;  ///< shortens it
  bool days = false;
  const char* printed = "";  ///< parameters, in both forms
  std::optional<double> first_rate = {};
  std::optional<double> last_rate = {};
  std::optional<Window> validated = {};  ///< in percent
  std::size_t back = 1;                  ///< which validation, from the end
  std::optional<Window> trained = {};    ///< in percent
  std::optional<Window> loss = {};
};

void PrintTo(const Line& line, std::ostream* out) { *out << line.name; }

void expect_results(const Line& line, const SeedRun& run) {
  expect_in(run.result.output, {line.printed});
  expect_loss(run);
  if (line.first_rate) {
    EXPECT_DOUBLE_EQ(run.training().first("lr"), *line.first_rate);
  }
  if (line.last_rate) {
    EXPECT_DOUBLE_EQ(run.training().last("lr"), *line.last_rate);
  }
  if (line.validated) line.validated->expect(run.validation().last("val_acc", line.back));
  if (line.trained) line.trained->expect(run.training().last("train_acc_avg"));
  if (line.loss) line.loss->expect(run.training().last("loss_batch"));
}

class SeedTest : public testing::TestWithParam<Line> {
 protected:
  void SetUp() override {
    if (whole() && !fs::exists(cifar10()))
      GTEST_SKIP() << "the whole form needs CIFAR-10 in " << cifar10();
  }
};
std::string name_of(const testing::TestParamInfo<Line>& line) { return line.param.name; }

// The whole form uses CIFAR-10, the short one generated images in the same format.
class CifarLineTest : public SeedTest {};
TEST_P(CifarLineTest, Trains) {
  const Line& line = GetParam();
  if (line.days && whole() && !whole_days())
    GTEST_SKIP() << "hours or half a day: MILLRACE_LONG_TESTS=days";
  const SeedRun run = train_seed(
      Words{"--dataset cifar-10 --seed 1 --data-dir", whole() ? cifar10() : small_data()} +
      line.line + (whole() ? "" : line.less));
  expect_results(line, run);
}

INSTANTIATE_TEST_SUITE_P(
    Lines, CifarLineTest,
    testing::Values(
        Line{.name = "ResNet20TenEpochs",
             .line = "--model-size 20 --epochs 10 --warmup-epochs 0 --learning-rate-decay 0.1 "
                     "--learning-rate-schedule 0.5,0.75,0.875",
             .less = "--model-size 8",
             .first_rate = 0.5,
             .last_rate = 0.0005,
             .validated = Window{81, 87},
             .trained = Window{81, 87}},
        Line{.name = "ResNet20FiftyEpochs",
             .line = "--model-size 20 --epochs 50 --batch-size 48 --warmup-epochs 2 --lr-schedule "
                     "cosine --label-smoothing 0.05 --base-learning-rate -5 --precision 16.32",
             .less = "--epochs 5 --model-size 8",
             .validated = Window{89, 91},
             .back = 2,
             .trained = Window{96, 98},
             .loss = Window{0.35, 0.45}},
        Line{.name = "ResNet20OnTwoReplicas",
             .line = "--model-size 20 --epochs 20 --replicas 2 --learning-rate-decay 0.5 "
                     "--learning-rate-schedule 0.5,0.9 --warmup-epochs 0",
             .less = "--epochs 4 --model-size 8",
             .trained = Window{85, 95}},
        // The original trains ten epochs; two show whether the loss falls.
        Line{.name = "ResNeXt29",
             .line = "--model resnext --model-size 29 --batch-size 8 --epochs 2 --warmup-epochs 0 "
                     "--learning-rate-schedule 0.5,0.75,0.875",
             .less = "--epochs 1 --model-size 11",
             .first_rate = 0.125,
             .last_rate = 0.000125},
        Line{.name = "ResNeXt29FiftyEpochs",
             .line = "--config ipu-resnext29-cifar10-50epochs",
             .less = "--epochs 1 --model-size 11 --batch-size 8",
             .days = true,
             .validated = Window{91, 95},
             .trained = Window{96, 100},
             .loss = Window{0.35, 0.45}},
        Line{.name = "ResNeXt29OnTwoReplicas",
             .line = "--model resnext --model-size 29 --batch-size 8 --epochs 20 --replicas 2 "
                     "--learning-rate-decay 0.5 --learning-rate-schedule 0.5,0.9 --warmup-epochs 0",
             .less = "--epochs 1 --model-size 11",
             .days = true,
             .trained = Window{85, 95}},
        Line{.name = "SqueezeNetTenEpochs",
             .line = "--model squeezenet --use-bypass --lr-schedule polynomial_decay_lr "
                     "--poly-lr-initial-lr 0.1 --poly-lr-end-lr 0.0001 --epochs 10",
             .less = "--batch-size 32 --epochs 2",
             .printed = "742708",
             .validated = Window{57, 67},
             .trained = Window{55, 65}},
        Line{.name = "SqueezeNetFourHundredEpochs",
             .line = "--config ipu-squeezenet-cifar10-400epochs",
             .less = "--batch-size 32 --epochs 2",
             .days = true,
             .validated = Window{83, 87},
             .trained = Window{96, 99},
             .loss = Window{0.35, 0.45}}),
    name_of);

// Generated images; `days` is unused.
class SyntheticLineTest : public SeedTest {};
TEST_P(SyntheticLineTest, Trains) {
  const Line& line = GetParam();
  expect_results(line, train_seed("--synthetic-data --no-validation" + Words(line.line) +
                                  (whole() ? "" : line.less)));
}

INSTANTIATE_TEST_SUITE_P(
    Lines, SyntheticLineTest,
    testing::Values(
        Line{
            .name = "ResNet50",
            .line =
                "--dataset imagenet --model-size 50 --batch-size 1 --iterations 10 --image-size 32",
            .less = ""},
        Line{.name = "ResNet50OnTwoDevices",
             .line = "--dataset imagenet --model-size 50 --batch-size 2 --shards 2 "
                     "--pipeline-depth 256 --pipeline-splits b3/1/relu --xla-recompute "
                     "--available-memory-proportion 0.1 --iterations 10 --image-size 64",
             .less = "--pipeline-depth 4 --image-size 32 --iterations 2",
             .printed = "Total Parameters: 25557032"},
        Line{.name = "ResNet50OnFourDevices",
             .line = "--dataset imagenet --model-size 50 --batch-size 2 --shards 2 --replicas 2 "
                     "--pipeline-schedule Grouped --pipeline-depth 128 --pipeline-splits b3/0/relu "
                     "--xla-recompute --iterations 10 --image-size 64",
             .less = "--pipeline-depth 4 --image-size 32 --iterations 2"},
        Line{.name = "ResNet14ManyOptions",
             .line =
                 "--dataset cifar-10 --model-size 14 --precision 32.32 --seed 1234 "
                 "--base-learning-rate -4 --batch-size 16 --warmup-epochs 0 "
                 "--no-stochastic-rounding --no-hostside-norm --epochs 10 --pipeline-num-parallel "
                 "2 --loss-scaling 64 --weight-decay 0.0001 --BN-decay 0.9 --logs-per-epoch 4 "
                 "--ckpts-per-epoch 1 --learning-rate-schedule 0.5 --label-smoothing 0.1",
             .less = "--epochs 0.02 --logs-per-epoch 256",
             .first_rate = 1.0},
        Line{.name = "ResNeXt14Sharded",
             .line = "--model resnext --dataset imagenet --model-size 14 --shards 2 --batch-size 1 "
                     "--iterations 5000 --image-size 32 --log-freq 2500",
             .less = "--iterations 4 --log-freq 2"},
        Line{.name = "ResNeXt14OnTwoStages",
             .line = "--model resnext --dataset imagenet --model-size 14 --shards 2 "
                     "--pipeline-depth 128 --pipeline-splits b2/0/relu --image-size 32 "
                     "--iterations 50 --batches-per-step 25",
             .less = "--iterations 4 --pipeline-depth 4 --batches-per-step 2",
             .printed = "9411880"},
        Line{.name = "ResNeXtManyOptions",
             .line = "--model resnext --dataset cifar-10 --model-size 11 --precision 32.32 --seed "
                     "1234 --base-learning-rate -5 --batch-size 8 --warmup-epochs 0 "
                     "--no-stochastic-rounding --no-hostside-norm --convolution-groups 16 "
                     "--group-dim 8 --group-norm --groups 8 --iterations 20 --log-freq 10",
             .less = "",
             .first_rate = 0.25},
        Line{.name = "EfficientNetB0OnTwoStages",
             .line = "--model efficientnet --model-size B0 --dataset imagenet --shards 2 "
                     "--pipeline-depth 256 --batch-size 2 --pipeline-splits block3b "
                     "--xla-recompute --iterations 10 --image-size 64",
             .less = "--iterations 1 --pipeline-depth 4 --image-size 32",
             .printed = "5288548"},
        Line{.name = "EfficientNetWithWiderGroups",
             .line = "--model efficientnet --model-size B0 --dataset imagenet --shards 4 "
                     "--batch-size 8 --pipeline-depth 64 --pipeline-splits block2a/SE block4a "
                     "block5c --xla-recompute --pipeline-schedule Grouped --optimiser RMSprop "
                     "--precision 16.32 --group-dim 16 --expand-ratio 4 --groups 4 --replicas 2 "
                     "--use-relu --ranks 1 --iterations 10 --log-freq 1 --image-size 64",
             .less = "--iterations 2 --pipeline-depth 8 --batch-size 2",
             .printed = "5913796"},
        Line{.name = "EfficientNetForCifar",
             .line = "--model efficientnet --model-size cifar --dataset cifar-10 --group-dim 16 "
                     "--expand-ratio 4 --iterations 100 --log-freq 50",
             .less = "--iterations 4 --log-freq 2"},
        Line{.name = "EfficientNetB1OnFourStages",
             .line = "--model efficientnet --model-size B1 --dataset imagenet --shards 4 "
                     "--pipeline-depth 128 --batch-size 4 --pipeline-splits block2a/c block4a "
                     "block5c --iterations 1",
             .less = "--image-size 64 --pipeline-depth 4",
             .printed = "7794184"}),
    name_of);

TEST(CommandLineTest, PlaceAndSuffixAppearInThePath) {
  const TemporaryDirectory directory;
  const ProcessResult result =
      millrace({"train --dialect ipu --dataset cifar-10 --synthetic-data --iterations 10 "
                "--batches-per-step 10 --threads-per-device 1 --name-suffix ending --log-dir",
                directory / "here"});
  ASSERT_EQ(result.code, 0) << result.output;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(result.output, match, std::regex(R"(\n Saving to (\S+))")));
  const fs::path run = match[1].str();
  EXPECT_EQ(run.parent_path(), directory / "here");
  EXPECT_NE(run.filename().string().find("_ending_"), std::string::npos) << run;
  EXPECT_TRUE(fs::exists(run / "training.csv"));
  EXPECT_TRUE(fs::exists(run / "validation.csv"));
}

/// Two workers of the guide correspond to one run here: 2 x 2 replicas of four stages. Every
/// replica must have the same weights, and the run must be reproducible.
TEST(CommandLineTest, WorkersHoldTheSameWeights) {
  const Words line =
      "--dataset imagenet --synthetic-data --model-size 50 --shards 4 --replicas 4 "
      "--pipeline-depth 64 --pipeline-splits b1/2/relu b2/3/relu b3/5/relu --batch-size 1 "
      "--iterations 100 --learning-rate-schedule 1 --base-learning-rate -14 --distributed "
      "--no-stochastic-rounding --no-validation --seed 1 --weight-check-every 1 --ranks 1 "
      "--image-size 32" +
      Words(whole_days() ? ""
            : whole()    ? "--iterations 3"
                         : "--iterations 2 --pipeline-depth 2");
  const SeedRun one = train_seed(line);
  const SeedRun two = train_seed(line + "--ranks 2");
  EXPECT_EQ(digest_of(one.run), digest_of(two.run));
  EXPECT_EQ(one.training().last("loss_avg"), two.training().last("loss_avg"));
}

TEST(CommandLineTest, ValidationPrintsEveryCheckpointInOrder) {
  const SeedRun run = train_seed(Words{"--dataset cifar-10 --data-dir", small_data()} +
                                 "--model-size 14 --iterations 4 --batches-per-step 2 --log-freq 2 "
                                 "--ckpts-per-epoch 10 --max-ckpts-to-keep 0 --no-validation");
  const ProcessResult result = millrace({"validate --restore-path", run.run});
  EXPECT_EQ(result.code, 0) << result.output;
  const std::regex line(R"(Validation top-1 accuracy \[ckpt-(\d+)\])");
  Words seen;
  for (std::sregex_iterator i(result.output.begin(), result.output.end(), line), end; i != end; ++i)
    seen.push_back((*i)[1]);
  EXPECT_EQ(seen, Words("0 2 4")) << result.output;
}

}  // namespace
}  // namespace millrace::test
