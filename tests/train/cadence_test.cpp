// SPDX-License-Identifier: Apache-2.0
#include "train/cadence.hpp"

#include "tests/support/test.hpp"

namespace millrace::train {
namespace {

TrainConfig config_of(std::int64_t iterations) {
  TrainConfig config;
  config.iterations = iterations;
  config.iterations_per_epoch = 10;
  config.log_every = 4;
  config.checkpoint_every = 5;
  config.validate_every = 10;
  return config;
}

/// Iterations from 0 to end at which the member of Due is set.
std::vector<std::int64_t> when(const TrainConfig& config, bool Due::*member) {
  std::vector<std::int64_t> found;
  for (std::int64_t done = 0; done <= config.iterations; ++done)
    if (due_after(config, done).*member) found.push_back(done);
  return found;
}

using Points = std::vector<std::int64_t>;

TEST(CadenceTest, EveryMultipleAndTheLastIterationAreDue) {
  const TrainConfig config = config_of(23);
  EXPECT_EQ(when(config, &Due::log), (Points{4, 8, 12, 16, 20, 23}));
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 5, 10, 15, 20, 23}));
  EXPECT_EQ(when(config, &Due::validate), (Points{10, 20, 23}));
}

TEST(CadenceTest, WithoutPeriodicCheckpointsTheFinalOneStays) {
  TrainConfig config = config_of(23);
  config.checkpoint_every = 0;
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{23}));
}

TEST(CadenceTest, ByTheClockTheFirstAndTheFinalOneAreCertain) {
  TrainConfig config = config_of(23);
  config.checkpoint_every = 0;
  config.checkpoint_minutes = 5.0;
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 23}));
  config.validation = ValidationMode::End;
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 10, 20, 23}));
}

TEST(CadenceTest, ValidationAtTheEndNeedsCheckpointsAtItsPoints) {
  TrainConfig config = config_of(25);
  config.validation = ValidationMode::End;
  config.checkpoint_every = 7;
  EXPECT_EQ(when(config, &Due::validate), Points{});
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 7, 10, 14, 20, 21, 25}));
  EXPECT_FALSE(is_validation_point(config, 0));
  EXPECT_TRUE(is_validation_point(config, 10));
  EXPECT_FALSE(is_validation_point(config, 14));
  EXPECT_TRUE(is_validation_point(config, 25));
}

TEST(CadenceTest, AtTheEndEverySavedCheckpointIsValidated) {
  TrainConfig config = config_of(25);
  config.validation = ValidationMode::End;
  config.checkpoint_every = 7;
  const auto validated = [&] {
    Points found;
    for (std::int64_t done = 0; done <= 25; ++done)
      if (is_validated_saved(config, done)) found.push_back(done);
    return found;
  };
  // All that are due but the untrained weights; others are those of an interruption.
  EXPECT_EQ(validated(), (Points{7, 10, 14, 20, 21, 25}));
  config.validation = ValidationMode::All;
  EXPECT_EQ(validated(), Points{});
}

TEST(CadenceTest, CheckpointsAreCountedAsTheyAreDue) {
  for (const ValidationMode mode :
       {ValidationMode::None, ValidationMode::All, ValidationMode::End}) {
    for (const std::int64_t iterations : {0, 1, 2, 23, 24, 60}) {
      for (const std::int64_t saved : {0, 1, 3, 4, 6, 100}) {
        for (const std::int64_t validated : {0, 1, 2, 6, 9, 100}) {
          TrainConfig config = config_of(iterations);
          config.validation = mode;
          config.checkpoint_every = saved;
          config.validate_every = validated;
          const Points due = when(config, &Due::checkpoint);
          for (std::int64_t first = 0; first <= iterations + 1; ++first) {
            const auto counted =
                std::count_if(due.begin(), due.end(), [&](std::int64_t i) { return i >= first; });
            ASSERT_EQ(checkpoints_from(config, first), counted)
                << first << " to " << iterations << ", saved every " << saved
                << ", validated every " << validated << ", mode " << static_cast<int>(mode);
          }
        }
      }
    }
  }
}

TEST(CadenceTest, CheckpointsOfLongIntervalsAreCounted) {
  constexpr std::int64_t kLong = std::int64_t{1} << 62;
  TrainConfig config = config_of(kLong);
  config.validation = ValidationMode::End;
  config.checkpoint_every = kLong / 2;
  config.validate_every = kLong / 2 - 1;
  EXPECT_EQ(checkpoints_from(config, 0),
            5);  // iteration 0, one more saved, two validated, the last one
}

TEST(CadenceTest, NoValidationIsNeverDue) {
  TrainConfig config = config_of(20);
  config.validation = ValidationMode::None;
  EXPECT_EQ(when(config, &Due::validate), Points{});
  EXPECT_FALSE(is_validation_point(config, 20));
}

TEST(StopTest, AnAccuracyEndsTheRun) {
  TrainConfig config;
  EXPECT_EQ(reason_to_stop(config, {{10, 99.0}}), "");
  config.stop_threshold = 0.75;
  EXPECT_EQ(reason_to_stop(config, {}), "");
  EXPECT_EQ(reason_to_stop(config, {{10, 74.99}}), "");
  EXPECT_EQ(reason_to_stop(config, {{10, 50.0}, {20, 75.0}}),
            "the validation accuracy 75.00 % reaches `stop-threshold` 0.75");
}

TEST(StopTest, ValidationsWithoutABetterOneEndTheRun) {
  TrainConfig config;
  config.early_stop = 2;
  std::map<std::int64_t, double> seen = {{10, 50.0}};
  EXPECT_EQ(reason_to_stop(config, seen), "");
  seen[20] = 60.0;
  EXPECT_EQ(reason_to_stop(config, seen), "");
  seen[30] = 60.0;  // no better
  EXPECT_EQ(reason_to_stop(config, seen), "");
  seen[40] = 59.0;
  EXPECT_EQ(reason_to_stop(config, seen),
            "the last 2 validations were no better than 60.00 % after 20 updates (`early-stop` 2)");
  seen[40] = 60.5;
  EXPECT_EQ(reason_to_stop(config, seen), "");
}

}  // namespace
}  // namespace millrace::train
