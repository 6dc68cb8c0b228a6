// SPDX-License-Identifier: Apache-2.0
//
// A stage that mixes its images computes what it computes of images that the host has mixed.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "io/mixing.hpp"
#include "models/registry.hpp"
#include "support/stage_chain.hpp"

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

TEST(ImageStageTest, TheNetworkReadsMixedImages) {
  models::ModelOptions model;
  model.size = "8";
  model.norm = models::NormKind::Group;
  model.groups = 4;
  model.image = kImage;
  const models::Graph graph = models::build_model(model);
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
  const test::StepState mixed = step_of(batch, true);
  EXPECT_GT(std::abs(step_of(batch, false).losses[0] - expected.losses[0]), 1e-3);
  EXPECT_NEAR(mixed.losses[0], expected.losses[0], 1e-5);
  const std::vector<float>& wanted = expected.gradients.at("b0/conv/kernel");
  const std::vector<float>& got = mixed.gradients.at("b0/conv/kernel");
  for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-6) << i;
}

}  // namespace
}  // namespace millrace::pipeline
