// SPDX-License-Identifier: Apache-2.0
//
// A stage whose images arrive as bytes, or whose images and labels are mixed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "device/compat.hpp"
#include "io/data/prefetch.hpp"
#include "io/mixing.hpp"
#include "models/registry.hpp"
#include "pipeline/stage.hpp"
#include "support/slope.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::int64_t kBatch = 6;
constexpr Shape kImage{8, 8, 3};
constexpr auto kElements = static_cast<std::size_t>(kImage.elements());

/// A micro-batch in all forms in which it can arrive.
struct MicroBatch {
  std::vector<std::uint8_t> bytes;
  std::vector<float> images;
  std::vector<PixelScaling> scaling;
  std::vector<std::int32_t> labels;
  std::vector<ImageMixing> mixing;

  [[nodiscard]] io::Batch as_bytes() const {
    io::Batch batch = as_floats();
    batch.images = std::as_bytes(std::span(bytes));
    batch.scaling = scaling;
    return batch;
  }
  [[nodiscard]] io::Batch as_floats() const {
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
  const io::MixingConfig config{
      .form = io::MixingForm::Rolled, .mixup_alpha = 1.0, .cutmix_lambda = 0.5};
  for (std::int64_t n = 0; n < kBatch; ++n) {
    PixelScaling scaling;
    for (std::size_t c = 0; c < 3; ++c) {
      scaling.mean[c] = 120.5f + static_cast<float>(c);
      scaling.scale[c] = 0.017f + 0.001f * static_cast<float>(n);
    }
    scaling.real = {.top = 1, .left = 0, .bottom = 8, .right = 7};
    std::vector<std::uint8_t> bytes(kElements);
    std::vector<float> image(kElements);
    for (std::size_t i = 0; i < kElements; ++i)
      bytes[i] = static_cast<std::uint8_t>(stream.block(static_cast<std::uint64_t>(n), i)[0]);
    io::normalise_bytes<float>(bytes, scaling, kImage, image);
    batch.bytes.insert(batch.bytes.end(), bytes.begin(), bytes.end());
    batch.images.insert(batch.images.end(), image.begin(), image.end());
    batch.scaling.push_back(scaling);
    batch.labels.push_back(static_cast<std::int32_t>(3 * n % 10));
    batch.mixing.push_back(io::draw_mixing(config, 1, n, n, kBatch, kImage));
  }
  return batch;
}

class ImageStageTest : public testing::Test {
 protected:
  ImageStageTest() {
    models::ModelOptions model;
    model.size = "8";
    model.norm = models::NormKind::Group;
    model.groups = 4;
    model.image = kImage;
    graph_ = models::build_model(model);
  }

  struct Held {
    std::unique_ptr<Stage> stage;
    std::unique_ptr<device::Arena> arena;
  };
  Held make(bool bytes, bool mixing, Recompute recompute = Recompute::None) {
    StageOptions options;
    options.batch = kBatch;
    options.evaluation_batch = kBatch;
    if (bytes) options.images = DType::U8;
    options.mixing = mixing;
    options.recompute = recompute;
    options.label_smoothing = {0.1f, SmoothingForm::AllClasses};
    Held held{std::make_unique<Stage>(graph_, whole(graph_), options, *backend_), nullptr};
    held.arena = std::make_unique<device::Arena>(held.stage->bytes());
    held.stage->bind(held.arena->at(0));
    held.stage->parameters().initialise(7);
    return held;
  }
  /// Loss of a forward pass in training.
  double loss(const Held& held, const io::Batch& batch) {
    BoundProgram& program = held.stage->training();
    program.begin_step(space_, 1.0f);
    Stage::load(program, {}, batch);
    program.run(space_, Phase::Forward, {});
    return held.stage->metrics(program, {}).loss;
  }
  std::vector<float> gradient(const Held& held, const io::Batch& batch,
                              models::ParameterId parameter) {
    (void)loss(held, batch);
    held.stage->training().run(space_, Phase::BackwardInput, {});
    const float* const g = held.stage->parameters().gradient(parameter);
    return {g, g + graph_.parameter(parameter).elements()};
  }
  [[nodiscard]] models::ParameterId find(std::string_view name) const {
    for (std::size_t p = 0; p < graph_.parameters.size(); ++p)
      if (graph_.parameters[p].name == name)
        return models::ParameterId{static_cast<std::int32_t>(p)};
    ADD_FAILURE() << name;
    return {};
  }

  Graph graph_;
  std::unique_ptr<ops::Backend> backend_ = ops::make_default_backend();
  device::ExecutionSpace space_;
};

TEST_F(ImageStageTest, BytesTrainAndEvaluateAsFloatsDo) {
  const MicroBatch batch = draw_batch();
  const Held floats = make(false, false);
  const Held bytes = make(true, false);
  EXPECT_EQ(loss(bytes, batch.as_bytes()), loss(floats, batch.as_floats()));
  const auto evaluated = [&](const Held& held, const io::Batch& of) {
    BoundProgram& program = held.stage->evaluation();
    program.begin_step(space_, 1.0f);
    Stage::load(program, {}, of);
    program.run(space_, Phase::Forward, {});
    return held.stage->metrics(program, {}).loss;
  };
  EXPECT_EQ(evaluated(bytes, batch.as_bytes()), evaluated(floats, batch.as_floats()));
}

// If all labels are equal, mixing labels has no effect except rounding.
TEST_F(ImageStageTest, TheNetworkReadsMixedImages) {
  MicroBatch batch = draw_batch();
  std::fill(batch.labels.begin(), batch.labels.end(), 4);
  MicroBatch by_host = batch;
  by_host.images = batch.mixed();
  const Held plain = make(false, false);
  const double expected = loss(plain, by_host.as_floats());
  EXPECT_GT(std::abs(loss(plain, batch.as_floats()) - expected), 1e-3);
  const Held mixing = make(false, true);
  const Held byte_mixing = make(true, true, Recompute::Stage);
  EXPECT_NEAR(loss(mixing, batch.as_floats()), expected, 1e-5);
  EXPECT_EQ(loss(byte_mixing, batch.as_bytes()), loss(mixing, batch.as_floats()));
  const models::ParameterId stem = find("b0/conv/kernel");
  const std::vector<float> wanted = gradient(plain, by_host.as_floats(), stem);
  const std::vector<float> got = gradient(byte_mixing, batch.as_bytes(), stem);
  for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-6) << i;
}

// The slope of the loss along a line through the weights must match the gradients.
TEST_F(ImageStageTest, SlopeOfTheMixedLossIsTheGradient) {
  const MicroBatch batch = draw_batch();
  const Held held = make(true, true);
  for (const char* name : {"b0/conv/kernel", "b2/0/conv2/kernel", "fc1/kernel", "fc1/bias"}) {
    const models::ParameterId id = find(name);
    const std::vector<float> g = gradient(held, batch.as_bytes(), id);
    const double error = test::slope_error(held.stage->parameters().value(id), g, {5e-3}, [&] {
      return loss(held, batch.as_bytes()) / static_cast<double>(kBatch);
    });
    EXPECT_LT(error, 0.02 * test::length_of(g) + 1e-4) << name;
  }
}

}  // namespace
}  // namespace millrace::pipeline
