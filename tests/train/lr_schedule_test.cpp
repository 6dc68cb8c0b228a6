// SPDX-License-Identifier: Apache-2.0
#include "train/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace millrace::train {
namespace {

TEST(LearningRateTest, TenEpochsOfCifarBeginAtOneHalfAndEndAtATwoThousandth) {
  // 10 epochs of 1562 iterations of 32 images; 2^-6 x 32 = 0.5.
  const ScheduleConfig schedule{
      .base_rate = 0.5, .decay = 0.1, .boundaries = {0.5, 0.75, 0.875}, .warmup_iterations = 0};
  const std::vector<std::pair<std::int64_t, double>> table = {
      {0, 0.5},       {7810, 0.5},    {7811, 0.05},    {11715, 0.05},
      {11716, 0.005}, {13667, 0.005}, {13668, 0.0005}, {15619, 0.0005}};
  for (const auto& [iteration, rate] : table)
    EXPECT_EQ(learning_rate(schedule, iteration, 15620), rate) << "iteration " << iteration;
}

TEST(LearningRateTest, SteppedWarmUpRisesLinearlyFromZero) {
  const ScheduleConfig schedule{
      .base_rate = 2.0, .decay = 0.5, .boundaries = {0.5}, .warmup_iterations = 8};
  EXPECT_EQ(learning_rate(schedule, 0, 100), 0.0);
  EXPECT_EQ(learning_rate(schedule, 1, 100), 0.25);
  EXPECT_EQ(learning_rate(schedule, 4, 100), 1.0);
  EXPECT_EQ(learning_rate(schedule, 8, 100), 2.0);
  EXPECT_EQ(learning_rate(schedule, 50, 100), 2.0);
  EXPECT_EQ(learning_rate(schedule, 51, 100), 1.0);
}

TEST(LearningRateTest, BoundaryAtTheEndOfTheRunIsNeverReached) {
  const ScheduleConfig schedule{.base_rate = 1.0, .decay = 0.1, .boundaries = {1.0}};
  EXPECT_EQ(learning_rate(schedule, 99, 100), 1.0);
}

TEST(LearningRateTest, CosineFallsFromTheBaseToZero) {
  const ScheduleConfig schedule{.kind = ScheduleKind::Cosine, .base_rate = 0.8};
  EXPECT_EQ(learning_rate(schedule, 0, 1000), 0.8);
  EXPECT_NEAR(learning_rate(schedule, 250, 1000), 0.4 * (1.0 + std::sqrt(0.5)), 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 500, 1000), 0.4, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 750, 1000), 0.4 * (1.0 - std::sqrt(0.5)), 1e-15);
}

TEST(LearningRateTest, CosineWarmUpMultipliesTheFallingValue) {
  const ScheduleConfig schedule{
      .kind = ScheduleKind::Cosine, .base_rate = 1.0, .warmup_iterations = 500};
  EXPECT_EQ(learning_rate(schedule, 0, 1000), 0.0);
  // At a quarter of the run: half of the warm-up is over, the cosine stands at (1 + sqrt 1/2) / 2.
  EXPECT_NEAR(learning_rate(schedule, 250, 1000), 0.25 * (1.0 + std::sqrt(0.5)), 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 500, 1000), 0.5, 1e-15);
}

TEST(LearningRateTest, DoesNotDependOnWhichIterationsWereAskedBefore) {
  const ScheduleConfig schedule{.base_rate = 1.0, .decay = 0.1, .boundaries = {0.1, 0.2, 0.3}};
  EXPECT_EQ(learning_rate(schedule, 99, 100), 0.001);
  EXPECT_EQ(learning_rate(schedule, 15, 100), 0.1);
}

}  // namespace
}  // namespace millrace::train
