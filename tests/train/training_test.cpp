// SPDX-License-Identifier: Apache-2.0
//
// The library's front door. tests/e2e/library.sh uses it from programs of its own.
#include "train/training.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/random.hpp"
#include "io/data/memory_dataset.hpp"
#include "run/learning_rate.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/runtime_of_tests.hpp"
#include "tests/support/temporary_directory.hpp"

namespace millrace::training {
namespace {

constexpr Shape kImage = {.h = 6, .w = 6, .c = 2};

/// Images of a class have one channel that is brighter than the other.
template <class T = std::uint8_t>
std::vector<T> pixels_of(std::int64_t image, std::uint64_t seed = 1) {
  const RandomStream stream(seed, RandomPurpose::SyntheticData, static_cast<std::uint64_t>(image));
  std::vector<T> pixels(static_cast<std::size_t>(kImage.elements()));
  for (std::size_t p = 0; p < pixels.size(); ++p) {
    const bool bright = static_cast<std::int64_t>(p % 2) == image % 2;
    const auto byte = static_cast<std::uint8_t>(stream.block(0, p)[0] % 180 + (bright ? 70 : 0));
    pixels[p] = static_cast<T>(byte);
    if (std::is_same_v<T, float>) pixels[p] = static_cast<T>((byte - 127.5f) * (1.0f / 127.5f));
  }
  return pixels;
}

std::shared_ptr<io::MemoryDataset> images(std::int64_t count, std::uint64_t seed) {
  auto made = std::make_shared<io::MemoryDataset>("channels", kImage, 2);
  for (std::int64_t n = 0; n < count; ++n)
    made->add(pixels_of(n, seed), static_cast<std::int32_t>(n % 2));
  return made;
}

models::Graph network(std::int64_t classes = 2, Shape image = kImage, bool norm = false) {
  models::GraphBuilder b("two-layers", image, classes);
  b.begin_layer("filters");
  models::ValueId x = b.conv("conv", b.input(), {.out_channels = 4, .kernel = {3, 3}});
  if (norm) x = b.batch_norm("norm", x, {});
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

TEST(TrainingTest, TakesWhatARunAsksFor) {
  run::Run asked = run_of(8);
  asked.update.weight_decay = 0.1;
  asked.rate.absolute = 0.05;
  run::Run told = run_of(8);
  told.update.weight_decay = 0.1;
  told.learning_rate.base_rate = 0.05;
  const auto digest = [](const run::Run& run) {
    Training training(RuntimeOfTests::runtime(), network(), images(96, 1), run);
    for (int i = 0; i < 3; ++i) (void)training.step();
    return training.digest();
  };
  EXPECT_EQ(digest(asked), digest(told));
  EXPECT_NE(digest(asked), digest(run_of(8)));
  told.optimiser.weight_decay = 0.1;
  EXPECT_EQ(digest(asked), digest(told)) << "what is the same is no error";
  told.optimiser.weight_decay = 0.2;
  expect_error(ErrorKind::Config,
               "Run::optimiser.weight_decay 0.2 follows from Run::update.weight_decay, with which "
               "it is 0.1: set that",
               [&] { (void)digest(told); });
  run::Run rms = run_of(8);
  rms.optimiser = run::usual_optimiser(UpdateRule::RmsProp);
  const std::string usual = digest(rms);
  rms.update.rmsprop_decay = 0.5;
  EXPECT_NE(digest(rms), usual);
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
  for (const run::Run& other : {run_of(4), run_of(4, 2)}) {
    Training one(RuntimeOfTests::runtime(), network(), images(96, 1), other);
    expect_error(
        ErrorKind::Checkpoint,
        {"its updates are of 8 images in micro-batches of 8, but those of this Training of",
         "in micro-batches of 4: set Run::batch_size"},
        [&] { one.load(saved); });
    EXPECT_EQ(one.steps(), 0);
  }
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
  expect_error(ErrorKind::Usage, {"Run::batch_size", "'0'"},
               [&] { const Training training(runtime, network(), images(4, 1), run_of(0)); });
  run::Run misspelled = run_of(4);
  misspelled.layout.splits = {"clases"};
  EXPECT_NE(refusal(network(), misspelled).find("classes"), std::string::npos);
  run::Run tight = run_of(4);
  tight.layout.device_memory = "1MB";
  EXPECT_TRUE(refusal(network(), tight).starts_with("the largest device needs "));
  run::Run spans = run_of(2);
  spans.model.batch_norm_span = 2;
  EXPECT_TRUE(refusal(network(), spans).starts_with("Run::model.batch_norm_span 2 has no effect"));
  EXPECT_NE(refusal(network(2, kImage, true), spans).find("divided into spans of 2"),
            std::string::npos);
  Training training(runtime, network(), images(4, 1), run_of(4));
  EXPECT_EQ(message_of(ErrorKind::Config, [&] { (void)training.evaluate(); }),
            "evaluate() needs validation images: give them to the Training");
}

/// Plain SGD in float32.
run::Run plain_run(std::int64_t batch_size, std::int64_t micro_batches = 1) {
  run::Run run = run_of(batch_size, micro_batches);
  run.optimiser = {};
  return run;
}

Training training_of(const run::Run& run,
                     const std::shared_ptr<const io::Dataset>& set = images(8, 1)) {
  return {RuntimeOfTests::runtime(), network(2, set->image_shape(), true), set, run, set};
}

using Values = std::map<std::string, std::vector<float>>;
Values values_of(const Training& training) {
  Values values;
  for (const ParameterInfo& parameter : training.parameters())
    values[parameter.name] = training.values(parameter.name);
  return values;
}

void expect_near(const Values& a, const Values& b, double most = 1e-6) {
  for (const auto& [name, values] : a)
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], b.at(name)[i], most) << name << " " << i;
}

TEST(Parameters, AreReadAndWrittenByName) {
  run::Run run = plain_run(8);
  run.precision.activations = DType::BF16;  // of which kernels have copies
  run.averaging.ema_decay = 0.9;            // begins with the values
  Training training = training_of(run);
  std::int64_t states = 0;
  for (const ParameterInfo& parameter : training.parameters()) {
    EXPECT_NE(parameter.trained, parameter.state) << parameter.name;
    states += parameter.state ? 1 : 0;
  }
  EXPECT_EQ(states, 2);
  EXPECT_EQ(training.parameters().front().name, "filters/conv/kernel");
  EXPECT_EQ(training.parameters().front().shape, (std::vector<std::int64_t>{4, 3, 3, 2}));
  run.seed = 1;
  Training copy = training_of(run);
  for (const auto& [name, values] : values_of(training)) copy.set_values(name, values);
  EXPECT_EQ(copy.digest(), training.digest());
  copy.set_values("classes/dense/kernel", std::vector<float>(8));
  EXPECT_NEAR(copy.step(0.0).loss, std::log(2.0), 1e-6);
  expect_error(ErrorKind::Config,
               "two-layers has no parameter filters/kernel: parameters() lists all",
               [&] { (void)training.values("filters/kernel"); });
  expect_error(ErrorKind::Config, "classes/dense/bias has 2 values, but 3 were given",
               [&] { copy.set_values("classes/dense/bias", std::vector<float>(3)); });
}

void expect_subtracted(const run::Run& run) {
  Training training = training_of(run);
  (void)training.step(0.1);
  const Values before = values_of(training);
  (void)training.step(1.0);
  double squares = 0.0;
  for (const ParameterInfo& parameter : training.parameters()) {
    if (!parameter.trained) continue;
    const std::vector<float> gradient = training.gradient(parameter.name);
    const std::vector<float> after = training.values(parameter.name);
    ASSERT_EQ(gradient.size(), after.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_FLOAT_EQ(after[i], before.at(parameter.name)[i] - gradient[i]) << parameter.name;
      squares += std::pow(static_cast<double>(gradient[i]), 2);
    }
  }
  const double norm = run.optimiser.clip_norm;
  EXPECT_NEAR(norm > 0.0 ? std::sqrt(squares) : norm, norm, 1e-6);
  EXPECT_GT(squares, 1e-5);
}

TEST(Gradients, AreWhatPlainSgdSubtracts) {
  run::Run run = plain_run(2, 4);
  expect_subtracted(run);
  run.optimiser.clip_norm = 0.01;
  expect_subtracted(run);
  run = plain_run(2, 2);
  run.pipeline.ranks.replicas = 2;
  run.layout.splits = {"classes"};
  expect_subtracted(run);
  run.optimiser.sharded = true;
  expect_subtracted(run);
}

TEST(Freezing, StopsWhatItNames) {
  const std::string kernel = "filters/conv/kernel";
  run::Run run = plain_run(4, 2);
  run.optimiser = run::usual_optimiser(UpdateRule::Momentum);
  run.averaging.ema_decay = 0.9;
  Training straight = training_of(run);
  Training training = training_of(run);
  EXPECT_EQ(training.step(0.1).loss, straight.step(0.1).loss);
  training.train_only({});  // all are trained already: nothing changes
  EXPECT_EQ(training.step(0.1).loss, straight.step(0.1).loss);
  EXPECT_EQ(training.digest(), straight.digest());
  const Values before = values_of(training);
  training.train_only({"dense"});
  expect_error(ErrorKind::Config, {"no gradient before an update: call step() first"},
               [&] { (void)training.gradient("classes/dense/bias"); });
  (void)training.step(0.1);
  EXPECT_EQ(training.values(kernel), before.at(kernel));
  EXPECT_NE(training.values("classes/dense/kernel"), before.at("classes/dense/kernel"));
  expect_error(ErrorKind::Config, kernel + " has no gradient, as it is not trained",
               [&] { (void)training.gradient(kernel); });
  training.train_only({});
  (void)training.step(0.1);
  EXPECT_NE(training.values(kernel), before.at(kernel));
  run.trained_filters = {"dense"};
  EXPECT_FALSE(training_of(run).parameters().front().trained);
}

TEST(Steps, FollowTheScheduleOfTheRun) {
  run::Run run = plain_run(8);
  run.learning_rate.kind = run::LearningRateKind::Cosine;
  for (const std::int64_t length : {0, 4}) {
    if (length > 0) run.length.iterations = length;
    Training follows = training_of(run);
    Training told = training_of(run);
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t at = std::min(i, length);
      (void)follows.step();
      (void)told.step(length == 0 ? 0.1 : run::learning_rate_at(run.learning_rate, at, length));
    }
    EXPECT_EQ(follows.digest(), told.digest());
  }
}

/// What the built-in loss computes, in double.
double cross_entropy(const NetworkOutput& output, std::span<float> gradient) {
  const auto count = static_cast<double>(output.labels.size());
  double loss = 0.0;
  for (std::size_t i = 0; i < output.logits.size(); ++i) {
    const std::size_t row = i - i % 2;
    const auto other = static_cast<double>(output.logits[row + 1 - i % 2]);
    const double p = 1.0 / (1.0 + std::exp(other - static_cast<double>(output.logits[i])));
    const bool own = static_cast<std::int32_t>(i % 2) == output.labels[i / 2];
    if (own) loss -= std::log(p) / count;
    if (!gradient.empty()) gradient[i] = static_cast<float>((p - (own ? 1.0 : 0.0)) / count);
  }
  return loss;
}

/// Half of the squared distance from targets by image.
double distance(const NetworkOutput& output, std::span<float> gradient) {
  double loss = 0.0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double target =
        std::sin(static_cast<double>(3 * output.images[i / 2]) + static_cast<double>(i % 2));
    const double error = static_cast<double>(output.logits[i]) - target;
    loss += 0.5 * error * error;
    gradient[i] = static_cast<float>(error);
  }
  return loss;
}

TEST(OwnLoss, ThatIsCrossEntropyChangesNothingButRounding) {
  for (const DType type : {DType::F32, DType::BF16, DType::F16}) {
    run::Run run = plain_run(4, 2);
    run.precision.activations = type;
    Training built_in = training_of(run, images(11, 1));
    Training own = training_of(run, images(11, 1));
    own.set_loss(cross_entropy);
    const double most = type == DType::F32 ? 1e-6 : 1e-3;
    for (int i = 0; i < 5; ++i) EXPECT_NEAR(own.step(0.5).loss, built_in.step(0.5).loss, most);
    expect_near(values_of(own), values_of(built_in), most);
    EXPECT_NEAR(own.evaluate().loss, built_in.evaluate().loss, most);
  }
}

// The images of an update are all images, in another order each time.
TEST(OwnLoss, HasTheGradientOfDifferences) {
  Training training = training_of(plain_run(8));
  training.set_loss(distance);
  (void)training.step(0.0);
  const Values at = values_of(training);
  Values gradients;
  double squares = 0.0;
  for (const ParameterInfo& parameter : training.parameters())
    if (parameter.trained)
      for (const float g : gradients[parameter.name] = training.gradient(parameter.name))
        squares += static_cast<double>(g) * static_cast<double>(g);
  const auto loss_at = [&](double shift) {
    for (const auto& [name, gradient] : gradients) {
      std::vector<float> values = at.at(name);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] += static_cast<float>(shift) * gradient[i];
      training.set_values(name, values);
    }
    return training.step(0.0).loss;
  };
  constexpr double kStep = 1e-3;
  EXPECT_NEAR((loss_at(kStep) - loss_at(-kStep)) / (2.0 * kStep), squares, 0.01 * squares);
}

/// The end of some steps, in the layout of `schedule`; "": one stage.
std::string end_of(run::Run run, const std::shared_ptr<const io::Dataset>& set,
                   const LossFunction& loss, const std::string& schedule) {
  if (!schedule.empty()) {
    run.layout.splits = {"filters/relu", "classes"};
    run.layout.schedule = schedule;
    if (schedule == "GPipe") run.layout.recompute = run::RecomputeRequest::Segments;
    run.data.loader_threads = 3;
  }
  Training training = training_of(run, set);
  training.set_loss(loss);
  double last = 0.0;
  for (int i = 0; i < 5; ++i) last = training.step(0.05).loss;
  return fmt::format("{} {}", training.digest(), last);
}

TEST(OwnLoss, HasTheSameBitsInEveryLayout) {
  run::Run run = plain_run(2, 4);
  run.precision.activations = DType::BF16;
  const std::string expected = end_of(run, images(8, 1), distance, "");
  EXPECT_NE(expected, end_of(run, images(8, 1), {}, ""));
  for (const char* schedule : {"1F1B", "GPipe", "ZB-H1"})
    EXPECT_EQ(end_of(run, images(8, 1), distance, schedule), expected) << schedule;
}

/// An image of a set, by its number, and the weight of its label.
struct Item {
  std::int64_t image = 0;
  float weight = 1.0f;
};
std::shared_ptr<io::MemoryDataset> set_of(const std::vector<Item>& items) {
  auto set = std::make_shared<io::MemoryDataset>("weighted", kImage, 2);
  for (const auto& [image, weight] : items)
    set->add(pixels_of(image), static_cast<std::int32_t>(image % 2), weight);
  return set;
}

TEST(OwnLoss, ThatThrowsEndsTheTraining) {
  Training training(RuntimeOfTests::runtime(), network(), images(96, 1), run_of(8));
  const test::TemporaryDirectory directory;
  const fs::path saved = training.save(directory.path());
  const double loss = training.step(0.1).loss;
  training.set_loss([](const NetworkOutput&, std::span<float>) -> double { throw 7; });
  EXPECT_THROW((void)training.step(0.1), int);
  training.set_loss({});
  expect_error(ErrorKind::Config, {"an update or a validation failed"},
               [&] { (void)training.step(0.1); });
  training.load(saved);
  EXPECT_EQ(training.step(0.1).loss, loss);
}

TEST(OwnLoss, GoesWithPlainLabelsOnly) {
  run::Run run = plain_run(2);
  for (const float weight : {1.0f, 2.0f}) {
    run.label_smoothing = weight > 1.0f ? 0.0 : 0.1;
    Training training = training_of(run, set_of({{0}, {1, weight}}));
    expect_error(ErrorKind::Config, {"plain labels"}, [&] { training.set_loss(distance); });
  }
}

/// The values after a step, and its loss.
Values after_step(const std::vector<Item>& items, std::int64_t batch_size = 1,
                  std::int32_t replicas = 1) {
  run::Run run = plain_run(batch_size, std::ssize(items) / (batch_size * replicas));
  run.pipeline.ranks.replicas = replicas;
  run.label_smoothing = 0.1;
  Training training(RuntimeOfTests::runtime(), network(), set_of(items), run);
  const double loss = training.step(0.5).loss;
  Values values = values_of(training);
  values["loss"] = {static_cast<float>(loss)};
  return values;
}

TEST(Weights, CountLabels) {
  const Values without = after_step({{0}, {1}, {2}, {3, 0.0f}}, 4);
  EXPECT_EQ(without, after_step({{0}, {1}, {2}, {5, 0.0f}}, 4));
  expect_near(without, after_step({{0}, {1}, {2}}, 3));
  const Values twice = after_step({{0}, {0}, {1}, {2}}, 4);
  expect_near(after_step({{0, 2.0f}, {1}, {2}}, 3), twice);
  // The mean is over the update, however it is divided, and whatever is common to all weights.
  expect_near(after_step({{0, 6.0f}, {1, 3.0f}, {2, 3.0f}}), twice);
  expect_near(after_step({{0, 6.0f}, {1, 3.0f}, {2, 3.0f}}, 1, 3), twice);
  expect_error(ErrorKind::Data, {"image 0 has weight -1"}, [] { (void)after_step({{0, -1.0f}}); });
  EXPECT_EQ(training_of(plain_run(2), set_of({{0, 5.0f}, {1}})).evaluate().loss,
            training_of(plain_run(2), set_of({{0}, {1}})).evaluate().loss)
      << "a validation counts every image once";
}

TEST(Weights, ChangeNoBitInAnotherLayout) {
  std::vector<Item> items;
  for (std::int64_t n = 0; n < 11; ++n) items.push_back({n, 0.25f * static_cast<float>(n)});
  EXPECT_EQ(end_of(plain_run(2, 4), set_of(items), {}, "1F1B"),
            end_of(plain_run(2, 4), set_of(items), {}, ""));
}

TEST(FloatImages, AreTheBytesWithTheSameValues) {
  for (const DType type : {DType::F32, DType::BF16, DType::F16}) {
    run::Run run = plain_run(4);
    run.precision.activations = type;
    const io::MemoryAugmentation augmentation{.mirrors = true, .padding = 2};
    auto bytes = std::make_shared<io::MemoryDataset>("bytes", kImage, 2, augmentation);
    auto floats = std::make_shared<io::MemoryDataset>("floats", kImage, 2, augmentation);
    for (std::int64_t n = 0; n < 8; ++n) {
      bytes->add(pixels_of(n), static_cast<std::int32_t>(n % 2));
      floats->add(pixels_of<float>(n), static_cast<std::int32_t>(n % 2));
    }
    Training of_bytes = training_of(run, bytes);
    Training of_floats = training_of(run, floats);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(of_floats.step(0.1).loss, of_bytes.step(0.1).loss);
    EXPECT_EQ(of_floats.digest(), of_bytes.digest());
    EXPECT_EQ(of_floats.evaluate().loss, of_bytes.evaluate().loss);
  }
}

/// Six bands, made when they are read.
struct Waves final : io::Dataset {
  std::int64_t labels = 2;
  std::vector<std::string> names = {};
  std::optional<run::Preparation> prepared = {};
  [[nodiscard]] std::vector<std::string> class_names() const override { return names; }
  [[nodiscard]] std::optional<run::Preparation> preparation() const override { return prepared; }
  [[nodiscard]] std::string name() const override { return "waves"; }
  [[nodiscard]] std::int64_t size() const override { return 32; }
  [[nodiscard]] Shape image_shape() const override { return {5, 5, 6}; }
  [[nodiscard]] std::int64_t classes() const override { return 2; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index % labels);
  }
  [[nodiscard]] bool has_floats() const override { return true; }
  io::Sample read_floats(std::int64_t index, const io::ReadKey&,
                         std::span<float> image) const override {
    for (std::size_t i = 0; i < image.size(); ++i)
      image[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(index % 2 + 1));
    return io::Sample::Own;
  }
};

TEST(OwnDataset, NeedsFewLines) {
  const auto waves = std::make_shared<Waves>();
  run::Run run = plain_run(16);
  run.data.sends_bytes = true;  // as complete() chooses for GPUs
  Training training = training_of(run, waves);
  const double first = training.step(0.5).loss;
  for (int i = 0; i < 30; ++i) (void)training.step(0.5);
  EXPECT_LT(training.step(0.5).loss, 0.5 * first);
  waves->labels = 5;
  expect_error(ErrorKind::Data, {"waves: image ", "but the labels are 0 to 1"},
               [&] { (void)training_of(run, waves).step(0.5); });
  run.data.asked_type = DType::U8;
  expect_error(ErrorKind::Config, {"uint8"}, [&] { (void)training_of(run, waves); });
}

// Or no reader could use its checkpoints.
TEST(OwnDataset, IsToldRightly) {
  Waves waves;
  const auto refusal = [&](ErrorKind kind) {
    return message_of(kind,
                      [&] { (void)training_of(plain_run(16), std::make_shared<Waves>(waves)); });
  };
  waves.names = {"slow", "fast"};
  waves.prepared = run::Preparation{};
  EXPECT_EQ(refusal(ErrorKind::Data), "");
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    waves.prepared->deviation[1] = bad;
    EXPECT_TRUE(refusal(ErrorKind::Data).starts_with("waves: prepares color 1 of its images"))
        << bad;
  }
  waves.prepared->by_image = true;  // which needs no deviation
  EXPECT_EQ(refusal(ErrorKind::Data), "");
  waves.prepared->preset = "none";
  EXPECT_NE(refusal(ErrorKind::Config).find("image preset \"none\""), std::string::npos);
  waves.prepared.reset();
  waves.names.emplace_back("none");
  EXPECT_EQ(refusal(ErrorKind::Data),
            "waves: has 2 classes, but 3 class names: give one for each, or none");
}

TEST(TwoRanks, GetAllValuesAndGradients) {
  if (std::getenv("MILLRACE_TEST_RANKS") == nullptr) GTEST_SKIP() << "needs mpirun";
  run::Run run = plain_run(2, 2);
  run.pipeline.ranks = {.devices = 1, .replicas = 2, .ranks = 2};
  expect_subtracted(run);
  run.optimiser.sharded = true;
  expect_subtracted(run);
  run = plain_run(2, 4);
  run.layout.splits = {"classes"};
  run.pipeline.ranks.ranks = 2;
  expect_subtracted(run);
  Training training = training_of(run);
  int calls = 0;
  training.set_loss([&](const NetworkOutput& output, std::span<float> gradient) {
    ++calls;
    return distance(output, gradient);
  });
  (void)training.step(0.1);
  EXPECT_EQ(calls, RuntimeOfTests::runtime().rank() == 1 ? 4 : 0) << "only where the last stage is";
  Values values = values_of(training);
  training.train_only({"dense"});
  EXPECT_EQ(values_of(training), values);
  std::vector<float>& kernel = values.at("filters/conv/kernel");
  kernel.assign(kernel.size(), 0.5f);
  training.set_values("filters/conv/kernel", kernel);
  EXPECT_EQ(values_of(training), values);
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
