// SPDX-License-Identifier: Apache-2.0
#include "train/cadence.hpp"

#include "tests/support/test.hpp"

namespace millrace::training {
namespace {

run::Run config_of(std::int64_t iterations) {
  run::Run config;
  config.iterations = iterations;
  config.iterations_per_epoch = 10;
  config.log_every = 4;
  config.checkpoint_every = 5;
  config.validate_every = 10;
  return config;
}

/// Iterations from 0 to end at which the member of Due is set.
std::vector<std::int64_t> when(const run::Run& config, bool Due::*member) {
  std::vector<std::int64_t> found;
  for (std::int64_t done = 0; done <= config.iterations; ++done)
    if (due_after(config, done).*member) found.push_back(done);
  return found;
}

using Points = std::vector<std::int64_t>;

TEST(CadenceTest, EveryMultipleAndTheLastIterationAreDue) {
  run::Run config = config_of(23);
  EXPECT_EQ(when(config, &Due::log), (Points{4, 8, 12, 16, 20, 23}));
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 5, 10, 15, 20, 23}));
  EXPECT_EQ(when(config, &Due::validate), (Points{10, 20, 23}));
  // Without periodic checkpoints the final one stays, by the clock also the first.
  config.checkpoint_every = 0;
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{23}));
  config.checkpoint_minutes = 5.0;
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 23}));
  config.validation = run::ValidationMode::End;
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 10, 20, 23}));
  config.validation = run::ValidationMode::None;
  EXPECT_EQ(when(config, &Due::validate), Points{});
  EXPECT_FALSE(is_validation_point(config, 20));
}

TEST(CadenceTest, SnapshotsAreDueAtMultiplesOfTheirInterval) {
  run::Run config = config_of(12);
  EXPECT_EQ(when(config, &Due::snapshot), Points{});
  config.partner_every = 4;
  EXPECT_EQ(when(config, &Due::snapshot), (Points{4, 8, 12}));
}

TEST(CadenceTest, ValidationAtTheEndNeedsCheckpointsAtItsPoints) {
  run::Run config = config_of(25);
  config.validation = run::ValidationMode::End;
  config.checkpoint_every = 7;
  EXPECT_EQ(when(config, &Due::validate), Points{});
  EXPECT_EQ(when(config, &Due::checkpoint), (Points{0, 7, 10, 14, 20, 21, 25}));
  const auto where = [&](bool (*is)(const run::Run&, std::int64_t)) {
    Points found;
    for (std::int64_t done = 0; done <= 25; ++done)
      if (is(config, done)) found.push_back(done);
    return found;
  };
  EXPECT_EQ(where(is_validation_point), (Points{10, 20, 25}));
  // Every saved one is validated: all that are due but the untrained weights; others are those of
  // an interruption.
  EXPECT_EQ(where(is_validated_saved), (Points{7, 10, 14, 20, 21, 25}));
  config.validation = run::ValidationMode::All;
  EXPECT_EQ(where(is_validated_saved), Points{});
}

TEST(CadenceTest, CheckpointsAreCountedAsTheyAreDue) {
  for (const run::ValidationMode mode :
       {run::ValidationMode::None, run::ValidationMode::All, run::ValidationMode::End}) {
    for (const std::int64_t iterations : {0, 1, 2, 23, 24, 60}) {
      for (const std::int64_t saved : {0, 1, 3, 4, 6, 100}) {
        for (const std::int64_t validated : {0, 1, 2, 6, 9, 100}) {
          run::Run config = config_of(iterations);
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
  run::Run config = config_of(kLong);
  config.validation = run::ValidationMode::End;
  config.checkpoint_every = kLong / 2;
  config.validate_every = kLong / 2 - 1;
  EXPECT_EQ(checkpoints_from(config, 0),
            5);  // iteration 0, one more saved, two validated, the last one
}

TEST(StopTest, AnAccuracyOrValidationsWithoutABetterOneEndTheRun) {
  struct Case {
    double threshold;
    int early;
    std::map<std::int64_t, double> seen;
    const char* reason;
  };
  for (const Case& one : std::vector<Case>{
           {0.0, 0, {{10, 99.0}}, ""},
           {0.75, 0, {}, ""},
           {0.75, 0, {{10, 74.99}}, ""},
           {0.75,
            0,
            {{10, 50.0}, {20, 75.0}},
            "the validation accuracy 75.00 % reaches `stop-threshold` 0.75"},
           {0.0, 2, {{10, 50.0}}, ""},
           {0.0, 2, {{10, 50.0}, {20, 60.0}}, ""},
           {0.0, 2, {{10, 50.0}, {20, 60.0}, {30, 60.0}}, ""},  // no better
           {0.0,
            2,
            {{10, 50.0}, {20, 60.0}, {30, 60.0}, {40, 59.0}},
            "the last 2 validations were no better than 60.00 % after 20 updates (`early-stop` 2)"},
           {0.0, 2, {{10, 50.0}, {20, 60.0}, {30, 60.0}, {40, 60.5}}, ""}}) {
    run::Run config;
    config.stop_threshold = one.threshold;
    config.early_stop = one.early;
    EXPECT_EQ(reason_to_stop(config, one.seen), one.reason);
  }
}

}  // namespace
}  // namespace millrace::training
