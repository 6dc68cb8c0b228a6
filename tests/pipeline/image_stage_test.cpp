// SPDX-License-Identifier: Apache-2.0
//
// A stage that mixes its images computes what it computes of images that the host has mixed, and
// one that stores images in another shape computes what it computes of others.
#include "io/mixing.hpp"
#include "models/registry.hpp"
#include "ops/linear.hpp"
#include "pipeline/op_shapes.hpp"
#include "support/stage_chain.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::int64_t kBatch = 6;
constexpr Shape kImage{8, 8, 3};
constexpr auto kElements = static_cast<std::size_t>(kImage.elements());

struct MicroBatch {
  std::vector<float> images;
  std::vector<ImageMixing> mixing;
  /// If all labels are equal, mixing labels has no effect except rounding.
  std::vector<std::int32_t> labels = std::vector<std::int32_t>(kBatch, 4);

  [[nodiscard]] io::Batch view() const {
    io::Batch batch;
    batch.images = std::as_bytes(std::span(images));
    batch.labels = labels;
    batch.mixing = mixing;
    return batch;
  }
  /// The same images, mixed on the host.
  [[nodiscard]] std::vector<float> mixed() const {
    std::vector<float> result(images.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      const std::size_t n = i / kElements;
      const auto y = static_cast<std::int32_t>(i % kElements / 24);
      const auto x = static_cast<std::int32_t>(i % 24 / 3);
      const PixelBox& box = mixing[n].box;
      const bool cut = y >= box.top && y < box.bottom && x >= box.left && x < box.right;
      const std::size_t from = cut ? static_cast<std::size_t>(mixing[n].donor) : n;
      const ImageMixing& m = mixing[from];
      const float a = images[from * kElements + i % kElements];
      const float b = images[static_cast<std::size_t>(m.partner) * kElements + i % kElements];
      result[i] = m.share * a + (1.0f - m.share) * b;
    }
    return result;
  }
};

MicroBatch draw_batch() {
  MicroBatch batch;
  const RandomStream stream(4, RandomPurpose::SyntheticData);
  for (std::size_t i = 0; i < kBatch * kElements; ++i)
    batch.images.push_back(4.0f * uniform01(stream.block(0, i)[0]) - 2.0f);
  const io::MixingConfig config{
      .form = io::MixingForm::Rolled, .mixup_alpha = 1.0, .cutmix_lambda = 0.5};
  for (std::int64_t n = 0; n < kBatch; ++n)
    batch.mixing.push_back(io::draw_mixing(config, 1, n, n, kBatch, kImage));
  return batch;
}

models::Graph small_network() {
  models::ModelOptions model;
  model.size = "8";
  model.norm = models::NormKind::Group;
  model.groups = 4;
  model.image = kImage;
  return models::build_model(model);
}

/// Expects nearly the same loss and gradient of the first kernel.
void expect_alike(const test::StepState& got, const test::StepState& expected) {
  EXPECT_NEAR(got.losses[0], expected.losses[0], 1e-5);
  const std::vector<float>& wanted = expected.gradients.at("b0/conv/kernel");
  const std::vector<float>& kernel = got.gradients.at("b0/conv/kernel");
  ASSERT_EQ(kernel.size(), wanted.size());
  float largest = 0.0f;
  for (const float x : wanted) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NEAR(kernel[i], wanted[i], 1e-6f + 1e-5f * largest) << i;
}

TEST(ImageStageTest, TheNetworkReadsMixedImages) {
  const models::Graph graph = small_network();
  const auto backend = ops::make_default_backend();
  StageOptions options;
  options.batch = kBatch;
  options.label_smoothing = {0.1f, SmoothingForm::AllClasses};
  const auto step_of = [&](const MicroBatch& batch, bool mixing) {
    options.mixing = mixing;
    test::StageChain chain(graph, {}, options, *backend);
    chain.use(batch.view());
    return chain.plain_step(1);
  };
  const MicroBatch batch = draw_batch();
  MicroBatch by_host = batch;
  by_host.images = batch.mixed();
  const test::StepState expected = step_of(by_host, false);
  EXPECT_GT(std::abs(step_of(batch, false).losses[0] - expected.losses[0]), 1e-3);
  expect_alike(step_of(batch, true), expected);
}

constexpr Shape kEight{8, 8, 8};

/// Computes with plain loops, in which zeros change no bit.
class Loops final : public ops::Vendor {
 public:
  [[nodiscard]] const char* name() const override { return "loops"; }
  [[nodiscard]] bool multiplies(DType) const override { return true; }
  [[nodiscard]] ops::LinearClaim claim(const ops::ConvShape& s, DType type, ops::Passes passes,
                                       std::int64_t) const override {
    input_channels.insert(s.window.in.c);
    EXPECT_FALSE(s.stored);
    return {passes, ops::make_plain(s, type)};
  }
  [[nodiscard]] ops::LinearClaim claim(const ops::DenseShape& s, DType type, ops::Passes passes,
                                       std::int64_t) const override {
    return {passes, ops::make_plain(s, type)};
  }
  using Vendor::claim;

  mutable std::set<std::int64_t> input_channels;
};

/// The states after two steps of two micro-batches each, with images as they are or padded.
test::StepState trained(const models::Graph& graph, const StageOptions& options, bool padded,
                        const io::Batch& batch, std::set<std::int64_t>* channels = nullptr) {
  auto vendor = std::make_unique<Loops>();
  const Loops& asked = *vendor;
  ops::Backend backend(std::move(vendor), {}, ops::Choice::VendorOnly);
  models::Graph network = graph;
  if (padded) network.stored_image = kEight;
  test::StageChain chain(network, {}, options, backend);
  chain.use(batch);
  test::StepState state = chain.plain_step(2);
  if (channels != nullptr) *channels = asked.input_channels;
  return state;
}

TEST(PaddedImagesTest, TrainToTheSameBits) {
  const models::Graph graph = small_network();
  const MicroBatch images = draw_batch();
  for (const DType type : {DType::F32, DType::BF16, DType::F16})
    for (const bool mixing : {false, true})
      for (const Recompute recompute : {Recompute::None, Recompute::Stage}) {
        StageOptions options;
        options.batch = kBatch;
        options.type = type;
        options.images = DType::F32;
        options.mixing = mixing;
        options.recompute = recompute;
        io::Batch batch = images.view();
        if (!mixing) batch.mixing = {};
        const test::StepState expected = trained(graph, options, false, batch);
        std::set<std::int64_t> channels;
        const test::StepState padded = trained(graph, options, true, batch, &channels);
        EXPECT_EQ(padded.losses, expected.losses) << name_of(type) << mixing;
        EXPECT_EQ(padded.gradients, expected.gradients) << name_of(type) << mixing;
        EXPECT_EQ(padded.values, expected.values) << name_of(type) << mixing;
        EXPECT_EQ(channels.count(8), 1u);
        EXPECT_EQ(channels.count(3), 0u) << "the first convolution was not padded";
      }
}

// Images that arrive as the network reads them, but for the padding, go through a buffer of their
// own, too.
TEST(PaddedImagesTest, AreMadeOfImagesThatNeedNothingElse) {
  const models::Graph graph = small_network();
  StageOptions options;
  options.batch = kBatch;
  MicroBatch images = draw_batch();
  images.mixing.clear();
  EXPECT_EQ(trained(graph, options, true, images.view()).losses,
            trained(graph, options, false, images.view()).losses);
  models::Graph padded = graph;
  padded.stored_image = kEight;
  const auto prepared = [&](const models::Graph& network) {
    const StageProgram program = compile(network, whole(network), options);
    return std::ranges::count_if(program.phase(Phase::Forward), [&](const Call& call) {
      if (call.kind != KernelKind::PrepareImages) return false;
      EXPECT_EQ(program.buffer(call.at(Role::X)).bytes, kBatch * kImage.elements() * 4);
      EXPECT_EQ(program.buffer(call.at(Role::Y)).bytes, kBatch * kImage.pixels() * 8 * 4);
      return true;
    });
  };
  EXPECT_EQ(prepared(graph), 0);
  EXPECT_EQ(prepared(padded), 1);
}

// Our own kernels add in tiles, in which zeros move the ends, and blocks have another order of
// sums: the results agree to rounding.
TEST(StoredImagesTest, AgreeToRoundingOnOurTiles) {
  models::ModelOptions model = models::default_options("resnet", models::Task::ImageNet);
  model.size = "14";
  model.norm = models::NormKind::Group;
  model.groups = 4;
  model.image = {32, 32, 3};
  const models::Graph graph = models::build_model(model);
  StageOptions options;
  options.batch = kBatch;
  options.images = DType::F32;
  const RandomStream stream(4, RandomPurpose::SyntheticData);
  std::vector<float> pixels;
  for (std::size_t i = 0; i < kBatch * 32 * 32 * 3; ++i)
    pixels.push_back(4.0f * uniform01(stream.block(0, i)[0]) - 2.0f);
  const std::vector<std::int32_t> labels(kBatch, 4);
  const auto step_of = [&](std::optional<Shape> stored) {
    models::Graph network = graph;
    network.stored_image = stored;
    ops::Backend own;
    test::StageChain chain(network, {}, options, own);
    io::Batch batch;
    batch.images = std::as_bytes(std::span(pixels));
    batch.labels = labels;
    chain.use(batch);
    return chain.plain_step(1);
  };
  const test::StepState expected = step_of({});
  for (const Recompute recompute : {Recompute::None, Recompute::Stage}) {
    options.recompute = recompute;
    for (const Shape& stored : {Shape{32, 32, 8}, Shape{16, 16, 16}})
      expect_alike(step_of(stored), expected);
  }
}

TEST(StoredImagesTest, OnlyAConvolutionThatAloneReadsThemDecides) {
  models::Graph graph = small_network();
  const auto store = [&](std::optional<Shape> wanted) {
    store_images(graph, kBatch, [&](const ops::ConvShape& first) {
      EXPECT_EQ(first.window.in, kImage);
      EXPECT_FALSE(first.stored);
      return wanted;
    });
    return graph.stored_image;
  };
  EXPECT_EQ(store({}), std::nullopt);
  EXPECT_EQ(store(kEight), kEight);
  const OpId first = graph.consumers(Graph::input()).front();
  EXPECT_EQ(conv_shape(graph, first, kBatch).stored, kEight);
  const OpId next{first.value + 1};
  graph.ops.at(next.at()).inputs.push_back(Graph::input());
  EXPECT_EQ(store(kEight), std::nullopt);
}

}  // namespace
}  // namespace millrace::pipeline
