// SPDX-License-Identifier: Apache-2.0
#include "run/learning_rate.hpp"

#include "tests/support/test.hpp"

namespace millrace::training {
namespace {

using Table = std::vector<std::pair<std::int64_t, double>>;

/// All literals have at least ten digits.
void expect_rates(const run::LearningRateConfig& config, std::int64_t total, const Table& table,
                  double relative = 1e-10) {
  for (const auto& [iteration, rate] : table)
    EXPECT_NEAR(run::learning_rate_at(config, iteration, total), rate, relative * rate + 1e-15)
        << "iteration " << iteration;
}

TEST(LearningRateTest, TenEpochsOfCifarBeginAtOneHalfAndEndAtATwoThousandth) {
  // 10 epochs of 1562 iterations of 32 images; 2^-6 x 32 = 0.5.
  const run::LearningRateConfig config{
      .base_rate = 0.5, .decay = 0.1, .boundaries = {0.5, 0.75, 0.875}, .warmup_iterations = 0};
  const std::vector<std::pair<std::int64_t, double>> table = {
      {0, 0.5},       {7810, 0.5},    {7811, 0.05},    {11715, 0.05},
      {11716, 0.005}, {13667, 0.005}, {13668, 0.0005}, {15619, 0.0005}};
  for (const auto& [iteration, rate] : table)
    EXPECT_EQ(run::learning_rate_at(config, iteration, 15620), rate) << "iteration " << iteration;
}

TEST(LearningRateTest, SteppedWarmUpRisesLinearlyFromZero) {
  expect_rates({.base_rate = 2.0, .decay = 0.5, .boundaries = {0.5}, .warmup_iterations = 8}, 100,
               {{0, 0.0}, {1, 0.25}, {4, 1.0}, {8, 2.0}, {50, 2.0}, {51, 1.0}}, 0.0);
}

TEST(LearningRateTest, CosineFallsFromTheBaseToZero) {
  run::LearningRateConfig config{.kind = run::LearningRateKind::Cosine, .base_rate = 0.8};
  const double half = std::sqrt(0.5);
  expect_rates(config, 1000,
               {{0, 0.8}, {250, 0.4 * (1.0 + half)}, {500, 0.4}, {750, 0.4 * (1.0 - half)}}, 0.0);
  // A warm-up multiplies the falling value: at a quarter of the run, half of it is done.
  config.warmup_iterations = 500;
  expect_rates(config, 1000, {{0, 0.0}, {250, 0.2 * (1.0 + half)}, {500, 0.4}}, 0.0);
}

// recipes.md C.3, NV: 0.256 x 8 x 256 / 256 = 2.048; 1281167 // 2048 = 625 iterations per epoch; a
// warm-up of 8 of 50 epochs, then a jump to the cosine, which started at iteration 0.
TEST(LearningRateTest, CosineBehindALinearWarmUpIsNotShifted) {
  const run::LearningRateConfig config{.kind = run::LearningRateKind::Cosine,
                                       .base_rate = 2.048,
                                       .warmup_iterations = 5000,
                                       .warmup = run::WarmupForm::Linear};
  expect_rates(config, 31250,
               {{0, 0.0},
                {2500, 1.024},
                {4999, 2.0475904},
                {5000, 1.9213380403649},  // cos 28.8 degrees = 0.87630668004386
                {15625, 1.024}});
  // Half of base times the square of half the last angle, pi / 31250.
  EXPECT_NEAR(run::learning_rate_at(config, 31249, 31250), 5.1745e-9, 1e-12);
}

// recipes.md C.3, NV: D = 90 x N // global if the run's length is given in batches.
TEST(LearningRateTest, HorizonReplacesTheRunAndHoldsTheRateBehindIt) {
  run::LearningRateConfig config{.kind = run::LearningRateKind::Cosine, .base_rate = 2.0};
  config.horizon = 1000;
  expect_rates(config, 50, {{0, 2.0}, {25, 1.9969173337331}, {49, 1.98817491911028}});
  EXPECT_NEAR(run::learning_rate_at(config, 2000, 3000), 0.0, 1e-15);
}

// recipes.md C.3, GC exponential with A.5's B0: 2^-14 x 512 = 0.03125, 0.97, 146 drops.
TEST(LearningRateTest, ExponentialDropsAtWholeParts) {
  run::LearningRateConfig config{
      .kind = run::LearningRateKind::Exponential, .base_rate = 0.03125, .decay = 0.97};
  expect_rates(config, 1460,
               {{0, 0.03125},
                {9, 0.03125},
                {10, 0.0303125},
                {20, 0.029403125},
                {1449, 0.000389027010665714},
                {1459, 0.000377356200345743}});
  config.warmup_iterations = 50;
  expect_rates(config, 1460, {{0, 0.0}, {25, 0.0147015625}, {60, 0.0260303751540313}});
}

// recipes.md C.3, GC polynomial_decay_lr with the defaults of B.1: 0.0012, 0.0001, 1.
TEST(LearningRateTest, PolynomialFallsToItsEndRate) {
  run::LearningRateConfig config{
      .kind = run::LearningRateKind::Polynomial, .base_rate = 0.0012, .end_rate = 0.0001};
  expect_rates(config, 1000, {{0, 0.0012}, {500, 0.00065}, {999, 0.0001011}, {1000, 0.0001}});
  config.power = 2.0;
  expect_rates(config, 1000, {{0, 0.0012}, {500, 0.000375}, {900, 0.000111}});
}

// recipes.md C.3, NV: x 0.1 at epochs 30, 60, 80, 90, 625 iterations each.
TEST(LearningRateTest, PiecewiseFallsBehindItsCuts) {
  const std::vector<double> epochs = {30, 60, 80, 90};
  const run::LearningRateConfig config{.kind = run::LearningRateKind::Piecewise,
                                       .base_rate = 2.048,
                                       .warmup_iterations = 3125,
                                       .warmup = run::WarmupForm::Linear,
                                       .cuts = run::cuts_at(epochs, 625),
                                       .factors = {1, 0.1, 0.01, 0.001, 0.0001}};
  EXPECT_EQ(config.cuts, (std::vector<std::int64_t>{18750, 37500, 50000, 56250}));
  expect_rates(config, 62500,
               {{0, 0.0},
                {1, 0.00065536},
                {3125, 2.048},
                {18750, 2.048},
                {18751, 0.2048},
                {37500, 0.2048},
                {37501, 0.02048},
                {50001, 0.002048},
                {56250, 0.002048},
                {62499, 0.0002048}});
}

// recipes.md C.3, HK piecewise: 0.1 x 256 / 256; 1281167 // 256 = 5004 iterations per epoch.
TEST(LearningRateTest, PiecewiseOfKerasWarmsUpForFiveEpochs) {
  const std::vector<double> epochs = {30, 60, 80};
  const run::LearningRateConfig config{.kind = run::LearningRateKind::Piecewise,
                                       .base_rate = 0.1,
                                       .warmup_iterations = 25020,
                                       .warmup = run::WarmupForm::Linear,
                                       .cuts = run::cuts_at(epochs, 5004),
                                       .factors = {1, 0.1, 0.01, 0.001}};
  expect_rates(config, 450360,
               {{0, 0.0},
                {12510, 0.05},
                {25020, 0.1},
                {150120, 0.1},
                {150121, 0.01},
                {300241, 0.001},
                {400321, 0.0001},
                {450359, 0.0001}});
}

// recipes.md C.3, SS: gradual_warmup_then_dec(a = 0.1, W = 260, b = 4.8, T = 4680).
TEST(LearningRateTest, GradualWarmUpThenLinearToZero) {
  const run::LearningRateConfig config{.kind = run::LearningRateKind::GradualWarmup,
                                       .base_rate = 4.8,
                                       .warmup_iterations = 260,
                                       .initial_rate = 0.1};
  expect_rates(config, 4680,
               {{0, 0.1},
                {130, 2.45},
                {259, 4.781923076923},
                {260, 4.8},
                {2470, 2.4},
                {4679, 0.00108597285067873},
                {4680, 0.0}});
}

TEST(LearningRateTest, LarsPolynomialDecaysBehindItsWarmUp) {
  // recipes.md C.3, HK MLPerf 8 x 256: power 9, warm-up of 3 epochs of 625 iterations, 40 epochs of
  // a decay over 41, whose horizon lies behind the run.
  run::LearningRateConfig config{.kind = run::LearningRateKind::LarsPolynomial,
                                 .base_rate = 9.0,
                                 .warmup_iterations = 1875,
                                 .end_rate = 0.0001,
                                 .power = 2.0,
                                 .horizon = 25625};
  expect_rates(config, 25000,
               {{0, 0.0},
                {625, 3.0},
                {1875, 9.0},
                {1876, 8.99924216154803},
                {13750, 2.25026446759007},
                {24999, 0.00637204212091251}});
  // HX LARS: 9.5, 38 epochs of 1281167 // 16384 = 78 iterations, 8 of warm-up.
  config.base_rate = 9.5;
  config.warmup_iterations = 624;
  config.horizon = run::LearningRateConfig{}.horizon;
  expect_rates(config, 2964,
               {{0, 0.0},
                {312, 4.75},
                {624, 9.5},
                {625, 9.49188562924054},
                {1794, 2.3771044594246},
                {2963, 0.000106933878027598}});
  // Without a warm-up it begins one step down: max(0 - 0, 1) / (9 - 0 + 1) = 1 / 10.
  expect_rates({.kind = run::LearningRateKind::LarsPolynomial, .base_rate = 9.0, .power = 2.0}, 9,
               {{0, 7.29}, {1, 7.29}, {2, 5.76}});
}

}  // namespace
}  // namespace millrace::training
