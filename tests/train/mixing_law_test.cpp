// SPDX-License-Identifier: Apache-2.0
//
// The law for the processing of images and labels. With mixup, cutmix, both kinds of label
// smoothing and normalization on the device, losses, accuracies, weights and running statistics
// have the same bits for all layouts, loaders and restarts, and for images sent as bytes or floats.
#include "io/data/synthetic.hpp"
#include "tests/train/outcome.hpp"

namespace millrace::training {
namespace {

using namespace small;

constexpr std::int64_t kImages = 41;  // an epoch ends within a micro-batch of the third step
constexpr std::int64_t kFewSteps = 2;

Outcome mixed(const Layout& layout, std::int64_t steps = 4, bool restart_each_step = false) {
  static const auto data = std::make_shared<NoiseDataset>(model_of({}).image, -1, kImages);
  return train(layout, steps, data, restart_each_step);
}

constexpr run::MixingConfig kMixup{.form = run::MixingForm::Reversed, .mixup_alpha = 0.2};
constexpr run::MixingConfig kCutmix{.form = run::MixingForm::Rolled, .cutmix_lambda = 0.6};
constexpr run::MixingConfig kBoth{
    .form = run::MixingForm::Rolled, .mixup_alpha = 1.0, .cutmix_lambda = 0.5};

std::vector<Layout> recipes() {
  return {{.mixing = kMixup, .smoothing = 0.1, .form = SmoothingForm::AllClasses},
          {.mixing = kBoth, .smoothing = 0.1},
          {.type = DType::BF16, .batch = 4, .mixing = kCutmix},
          {.type = DType::BF16, .smoothing = 0.1}};
}

/// The layout with the options of the recipe that change the result.
Layout with_recipe(Layout layout, const Layout& recipe) {
  layout.type = recipe.type;
  layout.batch = recipe.batch;
  layout.mixing = recipe.mixing;
  layout.smoothing = recipe.smoothing;
  layout.form = recipe.form;
  return layout;
}

TEST(MixingLawTest, LayoutsGiveTheBitsOfOneStage) {
  const Layout layouts[] = {
      {.image_type = DType::U8},
      {.recompute = true, .loaders = 3},
      {.stages = 3, .recompute = true, .image_type = DType::U8, .loaders = 2},
      {.stages = 2, .schedule = "1F1B", .image_type = DType::U8, .loaders = 0},
      {.stages = 4, .schedule = "GPipe", .recompute_layers = {"b0", "b2"}, .loaders = 4},
      {.stages = 4,
       .schedule = "Grouped",
       .recompute_layers = {"b0", "b2"},
       .image_type = DType::U8},
      {.stages = 4, .schedule = "ZB-V", .chunks = 2, .recompute = true, .image_type = DType::U8},
      {.stages = 2, .recompute_layers = {"b0"}, .image_type = DType::F32}};
  for (const Layout& recipe : recipes()) {
    const Outcome expected = mixed(recipe);
    for (const Layout& layout : layouts)
      expect_same(mixed(with_recipe(layout, recipe)), expected, name_of(layout));
  }
}

// Run at two threads; the whole test above is run at two threads by hand (law_whole).
// Kernels turn images into the input of the first op, from bytes or floats, with and without
// recomputation.
TEST(MixingTwoThreadsTest, LayoutsGiveTheBitsOfOneStage) {
  const Layout layouts[] = {
      {.image_type = DType::U8},
      {.stages = 3, .recompute = true},
      {.stages = 2, .schedule = "1F1B", .recompute_layers = {"b0"}, .image_type = DType::U8}};
  for (const Layout& recipe : {recipes()[1], recipes()[2]}) {
    const Outcome expected = mixed(recipe, kFewSteps);
    for (const Layout& layout : layouts)
      expect_same(mixed(with_recipe(layout, recipe), kFewSteps), expected, name_of(layout));
  }
}

TEST(MixingLawTest, RestartsWithinAnEpochChangeNothing) {
  for (const std::optional<DType> type : {std::optional<DType>(), std::optional(DType::U8)}) {
    const Layout layout{.stages = 2, .schedule = "1F1B", .image_type = type, .mixing = kBoth};
    expect_same(mixed(layout, 4, true), mixed(layout), "restarted");
  }
}

// The same global batch, so only the order of summation differs.
TEST(MixingLawTest, ReplicasMixTheSameSamples) {
  const Outcome one = mixed({.mixing = kBoth}, 1);
  const Layout two{.stages = 2, .schedule = "1F1B", .replicas = 2, .mixing = kBoth};
  for (const Layout& layout : {two, Layout{.replicas = 4, .mixing = kBoth}}) {
    const Outcome cut = mixed(layout, 1);
    EXPECT_EQ(cut.losses, one.losses) << "the first loss is of the same weights";
    EXPECT_EQ(cut.correct, one.correct);
    EXPECT_LT(relative_difference(cut.weights, one.weights), 1e-6) << name_of(layout);
  }
  Layout bytes = two;
  bytes.image_type = DType::U8;
  bytes.stages = 3;
  expect_same(mixed(bytes), mixed(two), name_of(bytes));
}

// Each option changes training but not validation: plain labels, unmixed images.
TEST(MixingLawTest, EveryOptionChangesTheTraining) {
  const Layout all[] = {{},
                        {.smoothing = 0.1},
                        {.smoothing = 0.1, .form = SmoothingForm::AllClasses},
                        {.mixing = kMixup},
                        {.mixing = {.form = run::MixingForm::Rolled, .mixup_alpha = 0.2}},
                        {.mixing = {.mixup_alpha = 0.3}},
                        {.mixing = kCutmix},
                        {.mixing = {.cutmix_lambda = 0.7}},
                        {.mixing = kBoth}};
  std::set<std::string> digests;
  std::set<double> losses;
  for (const Layout& recipe : all) {
    digests.insert(mixed(recipe, kFewSteps).digest);
    losses.insert(mixed(recipe, 0).validation.loss);
  }
  EXPECT_EQ(digests.size(), std::size(all));
  EXPECT_EQ(losses.size(), 1u);
}

/// Digest and losses of two steps on synthetic images.
std::string trained_on(const std::shared_ptr<const io::Dataset>& data, const Layout& layout,
                       run::ImageSource source) {
  run::Run config = planned(layout);
  config.data.source = source;
  const comm::World world;
  Training training(config, world, data);
  std::string result;
  for (int i = 0; i < 2; ++i) result += fmt::format("{} ", training.step().metrics.loss);
  return result + training.digest();
}

// Training must not depend on how an image reaches the device.
TEST(MixingLawTest, ImagesThatStayOnTheDeviceTrainAsThoseThatAreSent) {
  const auto data = std::shared_ptr<const io::Dataset>(
      io::make_synthetic({.image_shape = model_of({}).image, .classes = 10, .size = kImages}));
  for (const Layout& recipe : {Layout{.mixing = kBoth}, Layout{.type = DType::BF16}})
    for (const std::int32_t replicas : {1, 2}) {
      std::set<std::string> results;
      for (const std::optional<DType> type : {std::optional<DType>(), std::optional(DType::U8)})
        for (const run::ImageSource source : {run::ImageSource::Device, run::ImageSource::Host}) {
          const Layout layout{.stages = 2, .replicas = replicas, .image_type = type, .loaders = 2};
          results.insert(trained_on(data, with_recipe(layout, recipe), source));
        }
      EXPECT_EQ(results.size(), 1u) << replicas << " replicas";
    }
}

TEST(MixingLawTest, BytesTakeLessOfTheLoaderAndOfTheStash) {
  const auto bytes_of = [](std::optional<DType> type) {
    const Layout layout{.stages = 4, .schedule = "GPipe", .recompute = true, .image_type = type};
    const comm::World world;
    const Session session(planned(layout), Session::Use::Training, world);
    return std::pair{session.feeder().loader_bytes(kImages), session.arena_bytes()};
  };
  const auto floats = bytes_of({});
  const auto bytes = bytes_of(DType::U8);
  EXPECT_LT(bytes.first, floats.first * 3 / 10);
  EXPECT_LT(bytes.second, floats.second);
}

}  // namespace
}  // namespace millrace::training
