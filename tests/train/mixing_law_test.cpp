// SPDX-License-Identifier: Apache-2.0
//
// The law for the processing of images and labels. With mixup, cutmix, both kinds of label
// smoothing and normalization on the device, losses, accuracies, weights and running statistics
// have the same bits for all stages, schedules, recomputation, loaders and restarts, and for images
// sent as bytes or as floats.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "core/random.hpp"
#include "io/checkpoint.hpp"
#include "io/data/cifar.hpp"
#include "io/data/synthetic.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/train/small_run.hpp"
#include "train/session.hpp"

namespace millrace::train {
namespace {

constexpr std::int64_t kSteps = 4;
constexpr std::int32_t kMicroBatches = 4;
constexpr std::int64_t kTrainImages = 48;  // an epoch ends within a micro-batch of the third step
constexpr std::int64_t kTestImages = 23;

/// Options that change the result.
struct Recipe {
  MixingConfig mixing;
  double smoothing = 0.1;
  SmoothingForm form = SmoothingForm::OtherClasses;
  DType type = DType::F32;
  bool augment = true;
  std::int64_t batch = 5;
};

/// Options that must not change the result.
struct Layout {
  std::int32_t stages = 1;
  std::string_view schedule = "Sequential";
  std::int32_t chunks = 1;
  Recompute recompute = Recompute::None;
  std::optional<DType> image_type = {};
  int threads = 1;
  std::int32_t replicas = 1;
};

std::string name_of(const Layout& l) {
  return fmt::format(
      "{} stages, {}, {} chunks, recompute {}, images as {}, {} loaders, {} replicas", l.stages,
      l.schedule, l.chunks, static_cast<int>(l.recompute),
      l.image_type ? millrace::name_of(*l.image_type) : "they are stored", l.threads, l.replicas);
}

/// Small sets of noise in the format of CIFAR-100, with fine labels 0 to 99.
class NoiseSets {
 public:
  NoiseSets() {
    write("train.bin", kTrainImages, 1);
    write("test.bin", kTestImages, 2);
    io::CifarOptions options{.kind = io::CifarKind::Cifar100};
    train = io::open_cifar(folder_.path(), options);
    options.split = io::Split::Validation;
    test = io::open_cifar(folder_.path(), options);
  }

  std::shared_ptr<const io::Dataset> train;
  std::shared_ptr<const io::Dataset> test;

 private:
  void write(const char* name, std::int64_t images, std::uint64_t seed) const {
    constexpr std::size_t kRecord = 3074;
    const RandomStream stream(seed, RandomPurpose::GeneratedData);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(images) * kRecord);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::uint8_t>(stream.block(0, i)[0]);
    for (std::size_t record = 0; record * kRecord < bytes.size(); ++record) {
      bytes[record * kRecord + 1] = static_cast<std::uint8_t>(record * 37 % 100);
      bytes[record * kRecord] = static_cast<std::uint8_t>(bytes[record * kRecord + 1] / 5);
    }
    std::FILE* const file = std::fopen((folder_ / name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
  }

  test::TemporaryDirectory folder_;
};

const NoiseSets& sets() {
  static const NoiseSets known;
  return known;
}

TrainConfig config_of(const Recipe& recipe, const Layout& layout) {
  TrainConfig config;
  config.model.size = "8";
  config.model.classes = 100;
  config.batch_size = recipe.batch;
  config.micro_batches = kMicroBatches / layout.replicas;
  config.iterations = kSteps;
  config.optimiser.kind = UpdateRule::Momentum;
  config.label_smoothing = recipe.smoothing;
  config.smoothing = recipe.form;
  config.precision = {.activations = recipe.type, .master = DType::F32};
  config.recompute = layout.recompute;
  if (layout.recompute == Recompute::Layers) config.recompute_layers = {"b0", "b2"};
  config.validation_batch_size = 4;
  config.seed = 17;
  config.data.train_size = kTrainImages;
  config.data.validation_size = kTestImages;
  config.data.augment = recipe.augment;
  config.data.mixing = recipe.mixing;
  config.data.loader_threads = layout.threads;
  config.data.image_type = layout.image_type;
  config.pipeline = small::plan_of({.stages = layout.stages,
                                    .schedule = layout.schedule,
                                    .chunks = layout.chunks,
                                    .replicas = layout.replicas},
                                   config);
  return config;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<std::int64_t> top1, top5;
  double validation_loss = 0.0;
  std::int64_t validated = 0;
  std::string digest;
  std::vector<float> weights;
};

Outcome train(const Recipe& recipe, const Layout& layout, std::int64_t steps = kSteps,
              bool restart_each_step = false) {
  const TrainConfig config = config_of(recipe, layout);
  const comm::World world;
  small::Training training(config, world, sets().train);
  Outcome outcome;
  for (std::int64_t i = 0; i < steps; ++i) {
    // A restored run has the weights of its checkpoint and feeds that start anywhere.
    if (restart_each_step && i > 0) training.begin_feeds();
    const pipeline::MicroBatchMetrics metrics = training.step().metrics;
    EXPECT_EQ(metrics.samples, config.total_batch());
    outcome.losses.push_back(metrics.loss);
    outcome.top1.push_back(metrics.top1);
    outcome.top5.push_back(metrics.top5);
  }
  const pipeline::MicroBatchMetrics validation = training.validate(sets().test);
  outcome.validation_loss = validation.loss;
  outcome.validated = validation.samples;
  const Snapshot snapshot = training.session().tensors().snapshot();
  outcome.digest = io::digest(snapshot.tensors());
  outcome.weights = small::all_values(snapshot);
  return outcome;
}

void expect_same(const Outcome& actual, const Outcome& expected, const std::string& name) {
  EXPECT_EQ(actual.losses, expected.losses) << name;
  EXPECT_EQ(actual.top1, expected.top1) << name;
  EXPECT_EQ(actual.top5, expected.top5) << name;
  EXPECT_EQ(actual.validation_loss, expected.validation_loss) << name;
  EXPECT_EQ(actual.validated, kTestImages) << name;
  EXPECT_EQ(actual.digest, expected.digest) << name;
}

constexpr MixingConfig kMixup{.form = MixingForm::Reversed, .mixup_alpha = 0.2};
constexpr MixingConfig kCutmix{.form = MixingForm::Rolled, .cutmix_lambda = 0.6};
constexpr MixingConfig kBoth{.form = MixingForm::Rolled, .mixup_alpha = 1.0, .cutmix_lambda = 0.5};

std::vector<Recipe> recipes() {
  return {{.mixing = kMixup, .form = SmoothingForm::AllClasses},
          {.mixing = kBoth},
          {.mixing = kCutmix, .smoothing = 0.0, .type = DType::BF16},
          {.mixing = kBoth, .form = SmoothingForm::AllClasses, .type = DType::BF16, .batch = 2},
          {.mixing = {}, .type = DType::BF16}};
}

std::vector<Layout> layouts() {
  using enum Recompute;
  return {
      {.image_type = DType::U8},
      {.recompute = Stage, .threads = 3},
      {.stages = 3, .image_type = DType::U8},
      {.recompute = Stage, .image_type = DType::U8, .threads = 2},
      {.stages = 2, .schedule = "1F1B", .image_type = DType::U8, .threads = 0},
      {.stages = 4, .schedule = "GPipe", .recompute = Layers, .threads = 4},
      {.stages = 4, .schedule = "Grouped", .recompute = Layers, .image_type = DType::U8},
      {.stages = 4,
       .schedule = "ZB-V",
       .chunks = 2,
       .recompute = Stage,
       .image_type = DType::U8,
       .threads = 2},
      {.stages = 3, .schedule = "ZB-H1", .threads = 2},
      {.stages = 2, .recompute = Layers, .image_type = DType::F32},
  };
}

TEST(MixingLawTest, LayoutsGiveTheBitsOfOneStage) {
  for (const Recipe& recipe : recipes()) {
    const Outcome expected = train(recipe, {});
    for (const Layout& layout : layouts())
      expect_same(train(recipe, layout), expected, name_of(layout));
  }
}

// Run at two threads; the whole test above is run at two threads by hand (mixing_law_whole).
// Kernels turn images into the input of the first op, from bytes or floats, with and without
// recomputation.
TEST(MixingTwoThreadsTest, LayoutsGiveTheBitsOfOneStage) {
  using enum Recompute;
  for (const Recipe& recipe : {Recipe{.mixing = kBoth},
                               Recipe{.mixing = kCutmix, .smoothing = 0.0, .type = DType::BF16}}) {
    const Outcome expected = train(recipe, {}, 2);
    for (const Layout& layout :
         {Layout{.image_type = DType::U8}, Layout{.stages = 3, .recompute = Stage},
          Layout{.stages = 2,
          .schedule = "1F1B",
          .recompute = Layers,
          .image_type = DType::U8,
          .threads = 2}})
      expect_same(train(recipe, layout, 2), expected, name_of(layout));
  }
}

TEST(MixingLawTest, RestartsWithinAnEpochChangeNothing) {
  for (const bool device : {false, true}) {
    const Recipe recipe{.mixing = kBoth};
    const Layout layout{.stages = 2,
                        .schedule = "1F1B",
                        .image_type = device ? std::optional(DType::U8) : std::nullopt};
    expect_same(train(recipe, layout, kSteps, true), train(recipe, layout), "restarted");
  }
}

// The same global batch, so only the order of summation differs.
TEST(MixingLawTest, ReplicasMixTheSameSamples) {
  for (const Recipe& recipe : {Recipe{.mixing = kMixup}, Recipe{.mixing = kBoth}}) {
    const Outcome one = train(recipe, {}, 1);
    const Layout two{.stages = 2, .schedule = "1F1B", .replicas = 2};
    Layout four{.replicas = 4};
    for (const Layout& layout : {two, four}) {
      const Outcome cut = train(recipe, layout, 1);
      EXPECT_EQ(cut.losses, one.losses) << "the first loss is of the same weights";
      EXPECT_EQ(cut.top5, one.top5);
      EXPECT_LT(small::relative_difference(cut.weights, one.weights), 1e-6) << name_of(layout);
    }
    Layout bytes = two;
    bytes.image_type = DType::U8;
    bytes.stages = 3;
    expect_same(train(recipe, bytes), train(recipe, two), name_of(bytes));
  }
}

// Each option changes training but not validation.
TEST(MixingLawTest, EveryOptionChangesTheTraining) {
  std::set<std::string> digests;
  std::vector<Recipe> all = {{.mixing = {}},
                             {.mixing = {}, .smoothing = 0.0},
                             {.mixing = {}, .form = SmoothingForm::AllClasses},
                             {.mixing = {}, .augment = false},
                             {.mixing = kMixup},
                             {.mixing = {.form = MixingForm::Rolled, .mixup_alpha = 0.2}},
                             {.mixing = {.mixup_alpha = 0.3}},
                             {.mixing = kCutmix},
                             {.mixing = {.cutmix_lambda = 0.7}},
                             {.mixing = kBoth}};
  for (const Recipe& recipe : all) digests.insert(train(recipe, {}, 2).digest);
  EXPECT_EQ(digests.size(), all.size());
  // Without a step all of them give the same validation: plain labels, unmixed images.
  std::set<double> losses;
  for (const Recipe& recipe : all) losses.insert(train(recipe, {}, 0).validation_loss);
  EXPECT_EQ(losses.size(), 1u);
}

TEST(MixingLawTest, SyntheticImagesTravelAsBytesToo) {
  const auto data = std::shared_ptr<const io::Dataset>(
      io::make_synthetic({.image_shape = {32, 32, 3}, .classes = 100, .size = kTrainImages}));
  std::set<double> losses;
  for (const bool device : {false, true}) {
    const TrainConfig config = config_of(
        {.mixing = kBoth}, {.image_type = device ? std::optional(DType::U8) : std::nullopt});
    const comm::World world;
    small::Training training(config, world, data);
    (void)training.step(1e-6);
    losses.insert(training.step(1e-6).metrics.loss);
  }
  EXPECT_EQ(losses.size(), 1u);
}

/// Digest and losses of two steps on synthetic images.
std::string trained_on(const std::shared_ptr<const io::Dataset>& data, TrainConfig config,
                       ImageSource source) {
  config.data.source = source;
  const comm::World world;
  small::Training training(config, world, data);
  std::string result;
  for (int i = 0; i < 2; ++i) result += fmt::format("{} ", training.step().metrics.loss);
  return result + training.digest();
}

// Training must not depend on how an image reaches the device.
TEST(MixingLawTest, ImagesThatStayOnTheDeviceTrainAsThoseThatAreSent) {
  const auto data = std::shared_ptr<const io::Dataset>(
      io::make_synthetic({.image_shape = {32, 32, 3}, .classes = 100, .size = kTrainImages}));
  for (const Recipe& recipe : {Recipe{.mixing = kBoth}, Recipe{.mixing = {}, .type = DType::BF16}})
    for (const std::optional<DType> type : {std::optional<DType>(), std::optional(DType::U8)})
      for (const std::int32_t replicas : {1, 2}) {
        const Layout layout{.stages = 2, .image_type = type, .threads = 2, .replicas = replicas};
        const TrainConfig config = config_of(recipe, layout);
        EXPECT_EQ(trained_on(data, config, ImageSource::Device),
                  trained_on(data, config, ImageSource::Host))
            << name_of(layout);
      }
}

TEST(MixingLawTest, BytesTakeLessOfTheLoaderAndOfTheStash) {
  const auto bytes_of = [](bool device, Recompute recompute) {
    const Layout layout{.stages = 4,
                        .schedule = "GPipe",
                        .recompute = recompute,
                        .image_type = device ? std::optional(DType::U8) : std::nullopt};
    const comm::World world;
    const Session session(config_of({.mixing = {}, .batch = 32}, layout), Session::Use::Training,
                          world);
    return std::pair{session.feeder().loader_bytes(kTestImages), session.arena_bytes()};
  };
  const auto floats = bytes_of(false, Recompute::Stage);
  const auto bytes = bytes_of(true, Recompute::Stage);
  EXPECT_LT(bytes.first, floats.first * 27 / 100);
  EXPECT_LT(bytes.second, floats.second);
}

}  // namespace
}  // namespace millrace::train
