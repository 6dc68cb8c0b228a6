// SPDX-License-Identifier: Apache-2.0
//
// Clipping where numbers end: a norm that is not finite skips the step, as gradients do that are
// not. Squares have the range of a double or, on devices without 64-bit floats, of a float.
#include "ops/accumulator.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/train/small_run.hpp"
#include "train/session.hpp"

namespace millrace::training {
namespace {

using namespace small;

run::Run clipped(Layout layout, run::LossScaling scaling) {
  layout.rule = UpdateRule::Momentum;
  layout.clip_norm = 0.5;
  run::Run config = planned(layout);
  config.loss_scaling = scaling;
  return config;
}

// Every gradient is finite in float32. The squares of so large ones are not.
TEST(Clipping, SkipsAStepWhoseNormIsNotFinite) {
  const comm::World world;
  Training training(clipped({}, {.initial = 0x1p100}), world);
  const std::string before = training.digest();
  const StepResult result = training.step();
  EXPECT_EQ(result.skipped, !device::kHasFloat64);
  EXPECT_EQ(training.digest() == before, !device::kHasFloat64);
  EXPECT_EQ(training.session().first_not_finite(),
            result.skipped ? "the norm of all gradients" : "");
}

TEST(Clipping, NamesTheNormThatIsNotFinite) {
  if (device::kHasFloat64) GTEST_SKIP() << "the squares of all finite gradients are finite";
  run::Run config = clipped({.stages = 2, .schedule = "1F1B"}, {.initial = 0x1p100});
  config.check_exceptions = true;
  const comm::World world;
  Training training(config, world);
  expect_error(ErrorKind::Numeric,
               {"the norm of all gradients is not finite, though each gradient is, update 1; use a "
                "smaller `loss-scaling`"},
               [&] { (void)training.step(); });
}

// Steps are skipped, identically in every layout, until the scale is low enough.
TEST(Clipping, FindsAScaleWhoseNormIsFiniteInEveryLayout) {
  constexpr int kScalingSteps = 16;
  const comm::World world;
  const auto trained = [&](const Layout& layout) {
    Training training(clipped(layout, {.kind = run::ScalingKind::Dynamic, .initial = 0x1p68}),
                      world);
    training.steps(kScalingSteps);
    return std::pair(training.session().scaling(), training.digest());
  };
  const auto [scaling, digest] = trained({});
  if (device::kHasFloat64) {
    EXPECT_EQ(scaling.skipped, 0);
  } else {
    EXPECT_GT(scaling.skipped, 2);
    EXPECT_LT(scaling.skipped, kScalingSteps - 2);
  }
  for (const Layout& layout : {Layout{.stages = 3, .schedule = "1F1B", .recompute = true},
                               Layout{.stages = 4, .schedule = "ZB-V", .chunks = 2}}) {
    const auto [cut_scaling, cut_digest] = trained(layout);
    EXPECT_EQ(cut_scaling, scaling);
    EXPECT_EQ(cut_digest, digest);
  }
}

// An infinite gradient has an infinite norm: the step is skipped as it is without clipping.
TEST(Clipping, TreatsGradientsThatAreNotFiniteAsOtherRunsDo) {
  for (const double norm : {0.0, 0.5}) {
    run::Run config = clipped({.stages = 2, .schedule = "1F1B"},
                              {.kind = run::ScalingKind::Dynamic, .initial = 1024.0});
    config.optimiser.clip_norm = norm;
    const std::int64_t first =
        io::SampleOrder::shuffled(config.seed, NoiseDataset(config.model.image).size()).at(0).index;
    const comm::World world;
    Training training(config, world, std::make_shared<NoiseDataset>(config.model.image, first));
    const std::string before = training.digest();
    EXPECT_TRUE(training.step().skipped);
    EXPECT_EQ(training.session().scaling().scale, 512.0);
    EXPECT_EQ(training.digest(), before);
  }
}

}  // namespace
}  // namespace millrace::training
