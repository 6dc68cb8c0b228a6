// SPDX-License-Identifier: Apache-2.0
//
// The library's front door. tests/e2e/install.sh uses it from a program of its own.
#include "train/training.hpp"

#include "core/random.hpp"
#include "io/data/memory_dataset.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::training {
namespace {

/// Kokkos starts once per process.
class RuntimeOfTests final : public ::testing::Environment {
 public:
  void SetUp() override { held() = std::make_unique<Runtime>(1); }
  void TearDown() override { held().reset(); }
  static const Runtime& runtime() { return *held(); }

 private:
  static std::unique_ptr<Runtime>& held() {
    static std::unique_ptr<Runtime> runtime;
    return runtime;
  }
};
[[maybe_unused]] const auto* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new RuntimeOfTests);

constexpr Shape kImage = {.h = 6, .w = 6, .c = 2};

/// Images of a class have one channel that is brighter than the other.
std::shared_ptr<io::MemoryDataset> images(std::int64_t count, std::uint64_t seed) {
  auto made = std::make_shared<io::MemoryDataset>("channels", kImage, 2);
  for (std::int64_t n = 0; n < count; ++n) {
    const auto label = static_cast<std::int32_t>(n % 2);
    const RandomStream stream(seed, RandomPurpose::SyntheticData, static_cast<std::uint64_t>(n));
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(kImage.elements()));
    for (std::size_t p = 0; p < pixels.size(); ++p) {
      const bool bright = static_cast<std::int32_t>(p % 2) == label;
      pixels[p] = static_cast<std::uint8_t>(stream.block(0, p)[0] % 180 + (bright ? 70 : 0));
    }
    made->add(pixels, label);
  }
  return made;
}

models::Graph network(std::int64_t classes = 2) {
  models::GraphBuilder b("two-layers", kImage, classes);
  b.begin_layer("filters");
  models::ValueId x = b.conv("conv", b.input(), {.out_channels = 4, .kernel = {3, 3}});
  x = b.activation("relu", x, {Activation::Relu});
  b.begin_layer("classes");
  x = b.global_average_pool("mean", x);
  x = b.dense("dense", x, {.units = classes});
  b.softmax_loss("loss", x);
  return std::move(b).build();
}

struct End {
  std::vector<double> losses;
  std::string digest;
  Score score;
};

/// In float32, with momentum.
run::Run run_of(std::int64_t batch_size, std::int64_t micro_batches = 1) {
  run::Run run;
  run.batch_size = batch_size;
  run.micro_batches = micro_batches;
  run.optimiser = run::usual_optimiser(UpdateRule::Momentum);
  run.precision.activations = DType::F32;
  return run;
}

End train_with(const run::Run& run, int steps = 40) {
  Training training(RuntimeOfTests::runtime(), network(), images(96, 1), run, images(50, 2));
  EXPECT_EQ(training.run().data.validation_size, 50);
  End end;
  for (int i = 0; i < steps; ++i) {
    const Score score = training.step(0.1);
    EXPECT_EQ(score.images, run.total_batch());
    EXPECT_FALSE(score.skipped);
    end.losses.push_back(score.loss);
  }
  end.score = training.evaluate();
  end.digest = training.digest();
  return end;
}

TEST(TrainingTest, LearnsAndTellsNewImagesApart) {
  const End end = train_with(run_of(8, 2));
  EXPECT_LT(end.losses.back(), 0.5 * end.losses.front());
  EXPECT_EQ(end.score.images, 50);
  EXPECT_GT(end.score.accuracy, 0.9);
}

TEST(TrainingTest, StagesAndSchedulesChangeNoBit) {
  const run::Run one = run_of(4, 4);
  const End expected = train_with(one, 10);
  for (const char* schedule : {"1F1B", "GPipe", "ZB-H1"}) {
    run::Run cut = one;
    cut.layout.splits = {"filters/relu", "classes"};
    cut.layout.schedule = schedule;
    const End end = train_with(cut, 10);
    EXPECT_EQ(end.losses, expected.losses) << schedule;
    EXPECT_EQ(end.digest, expected.digest) << schedule;
    EXPECT_EQ(end.score.loss, expected.score.loss) << schedule;
  }
}

TEST(TrainingTest, ReplicasAgreeToRounding) {
  run::Run replicated = run_of(4, 2);
  replicated.pipeline.ranks.replicas = 2;
  const End one = train_with(run_of(4, 4), 10);
  const End two = train_with(replicated, 10);
  for (std::size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(two.losses[i], one.losses[i], 1e-5);
}

TEST(TrainingTest, EveryRuleLearnsIn16BitsToo) {
  for (const OptimiserRow& row : kOptimisers) {
    run::Run run;  // 16 bits are the default
    run.batch_size = 16;
    run.optimiser = run::usual_optimiser(row.rule);
    Training training(RuntimeOfTests::runtime(), network(), images(96, 1), run);
    const bool adam = row.rule == UpdateRule::Adam || row.rule == UpdateRule::AdamW;
    const double rate = row.rule == UpdateRule::Lars ? 5.0 : adam ? 0.01 : 0.02;
    const double first = training.step(rate).loss;
    for (int i = 0; i < 40; ++i) (void)training.step(rate);
    EXPECT_LT(training.step(rate).loss, 0.9 * first) << row.name;
  }
}

TEST(TrainingTest, LoadedCheckpointContinuesBitForBit) {
  const test::TemporaryDirectory directory;
  const run::Run run = run_of(8);
  Training straight(RuntimeOfTests::runtime(), network(), images(96, 1), run);
  for (int i = 0; i < 5; ++i) (void)straight.step(0.1);
  const fs::path saved = straight.save(directory.path());
  EXPECT_EQ(saved.filename(), "ckpt-5");
  Training continued(RuntimeOfTests::runtime(), network(), images(96, 1), run);
  continued.load(saved);
  EXPECT_EQ(continued.steps(), 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(continued.step(0.1).loss, straight.step(0.1).loss);
  EXPECT_EQ(continued.digest(), straight.digest());
}

TEST(TrainingTest, WhatDoesNotGoTogetherIsRefused) {
  const Runtime& runtime = RuntimeOfTests::runtime();
  const auto refusal = [&](const models::Graph& graph, const run::Run& run) {
    return message_of(ErrorKind::Config,
                      [&] { const Training training(runtime, graph, images(4, 1), run); });
  };
  models::Graph wide = network();
  wide.input_shape.w = 7;
  EXPECT_EQ(refusal(wide, {}), "channels: images of 6x6x2, but two-layers takes images of 6x7x2");
  EXPECT_EQ(refusal(network(1), {}), "channels: 2 classes, but two-layers tells 1 apart");
  EXPECT_EQ(refusal(network(), run_of(0)),
            "1 replicas of 1 micro-batches of 0 images: give at least 1 of each");
  run::Run misspelled;
  misspelled.layout.splits = {"clases"};
  EXPECT_NE(refusal(network(), misspelled).find("classes"), std::string::npos);
  run::Run tight = run_of(4);
  tight.layout.device_memory = "1MB";
  EXPECT_TRUE(refusal(network(), tight).starts_with("the largest device needs "));
  run::Run spans = run_of(2);
  spans.model.batch_norm_span = 2;
  EXPECT_NE(refusal(network(), spans).find("divided into spans of 2"), std::string::npos);
  Training training(runtime, network(), images(4, 1));
  EXPECT_EQ(message_of(ErrorKind::Config, [&] { (void)training.evaluate(); }),
            "evaluate() needs validation images: give them to the Training");
}

TEST(MemoryDatasetTest, ImagesThatDoNotFitAreRefused) {
  io::MemoryDataset set("mine", {2, 2, 1}, 3);
  const std::vector<std::uint8_t> four(4);
  set.add(four, 2);
  EXPECT_EQ(set.size(), 1);
  EXPECT_EQ(message_of(ErrorKind::Data, [&] { set.add(four, 3); }),
            "mine: image 1 has label 3, but the labels are 0 to 2");
  EXPECT_EQ(message_of(ErrorKind::Data, [&] { set.add(std::vector<std::uint8_t>(5), 0); }),
            "mine: image 1 has 5 bytes, but 2x2x1 has 4: give height x width x channels");
}

}  // namespace
}  // namespace millrace::training
