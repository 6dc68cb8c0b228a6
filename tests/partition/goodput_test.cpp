// SPDX-License-Identifier: Apache-2.0
#include "partition/goodput.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/expect_error.hpp"
#include "tests/support/xml.hpp"

namespace millrace::partition {
namespace {

constexpr double kHour = 3600.0;
constexpr std::int64_t kMany = 20'000;

/// Hosts of which one fails every so many seconds, and a spare takes its place.
FailureModel failing_every(double seconds, double stall, double restart, std::int32_t hosts = 100) {
  return {.hosts = hosts,
          .failures_per_day = 86400.0 / (seconds * hosts),
          .step = 1.0,
          .checkpoint_stall = stall,
          .restart = restart};
}

double sum_of(const Goodput& g) { return g.goodput + g.lost + g.restarting + g.saving + g.missing; }

// Figures 3 to 5 of Daly (2006): a dump takes 5 minutes, a failure comes every 24 h, 6 h, 15 min.
TEST(CheckpointIntervalTest, IsThatOfThePaper) {
  EXPECT_NEAR(daly_interval(300.0, 24.0 * kHour) / 60.0, 117.0, 0.5);
  EXPECT_NEAR(daly_interval(300.0, 6.0 * kHour) / 60.0, 57.0, 0.5);
  EXPECT_NEAR(daly_interval(300.0, 900.0) / 60.0, 9.1, 0.05);
  EXPECT_EQ(daly_interval(1000.0, 400.0), 400.0);
  EXPECT_DOUBLE_EQ(young_interval(1.0, 24.0 * kHour), std::sqrt(2.0 * 86400.0));
}

// Where a spare takes the place of a lost host, the formula is exact; with 20,000 failures the
// simulation is within 3 % of what is lost: four standard deviations of the rate of failures.
TEST(GoodputTest, FormulaAndSimulationAgree) {
  for (const double between : {600.0, 4.0 * kHour, 30.0 * kHour})
    for (const double restart : {0.0, 120.0}) {
      const FailureModel model = failing_every(between, 5.0, restart);
      const FailureHistory history = failure_history(model, kMany);
      for (const double interval : {20.0, 120.0, 600.0, 3000.0}) {
        const double formula = goodput_by_formula(model, interval);
        const Goodput run = simulated_goodput(model, history, interval);
        EXPECT_NEAR(run.goodput, formula, 0.03 * (1.0 - formula)) << between << ' ' << interval;
        EXPECT_NEAR(sum_of(run), 1.0, 1e-9);
        EXPECT_NEAR(run.hosts, model.hosts, 1e-9);
      }
    }
}

// The first-order parts: hosts that stay away and come back by a restart, and snapshots of
// partners.
TEST(GoodputTest, FormulaAndSimulationAgreeToFirstOrder) {
  FailureModel model = failing_every(2.0 * kHour, 5.0, 60.0);
  model.notice = 30.0;
  model.probe = 10.0;
  model.away = 6.0 * kHour;
  for (const double snapshots : {0.0, 20.0}) {
    model.partner_interval = snapshots;
    model.partner_stall = 0.1;
    const FailureHistory history = failure_history(model, kMany);
    for (const double interval : {60.0, 300.0, 1200.0}) {
      const double formula = goodput_by_formula(model, interval);
      const Goodput run = simulated_goodput(model, history, interval);
      EXPECT_NEAR(run.goodput, formula, 0.1 * (1.0 - formula)) << snapshots << ' ' << interval;
      EXPECT_NEAR(sum_of(run), 1.0, 1e-9);
      EXPECT_NEAR(run.hosts, 100.0 / (1.0 + 6.0 / 200.0), 0.1);
    }
  }
}

TEST(GoodputTest, SnapshotsOfPartnersLeaveLittleToLose) {
  FailureModel model = failing_every(2.0 * kHour, 5.0, 60.0);
  const FailureHistory history = failure_history(model, kMany);
  const Goodput without = simulated_goodput(model, history, 1200.0);
  model.partner_interval = 20.0;
  model.partner_stall = 0.1;
  const Goodput with = simulated_goodput(model, history, 1200.0);
  EXPECT_LT(with.lost, 0.1 * without.lost);
  EXPECT_GT(with.saving, without.saving);
  EXPECT_GT(with.goodput, without.goodput);
  // Of two hosts each is the partner of the other, so that a second failure loses the snapshot.
  FailureModel two = failing_every(300.0, 5.0, 200.0, 2);
  two.partner_interval = 20.0;
  EXPECT_GT(simulated_goodput(two, failure_history(two, kMany), 1200.0).lost,
            2.0 * simulated_goodput(failing_every(300.0, 5.0, 200.0),
                                    failure_history(failing_every(300.0, 5.0, 200.0), kMany), 20.0)
                      .lost);
}

TEST(GoodputTest, WithoutFailuresOnlyStallsCost) {
  FailureModel model = failing_every(kHour, 5.0, 60.0);
  model.failures_per_day = 0.0;
  const FailureHistory history = failure_history(model, kMany);
  EXPECT_TRUE(history.events.empty());
  EXPECT_NEAR(simulated_goodput(model, history, 95.0).goodput, 0.95, 1e-5);
  EXPECT_DOUBLE_EQ(goodput_by_formula(model, 95.0), 0.95);
  model.checkpoint_stall = 0.0;
  EXPECT_DOUBLE_EQ(simulated_goodput(model, history, 95.0).goodput, 1.0);
  expect_error(ErrorKind::Config, "0 failures a day: without failures no interval is the best",
               [&] { (void)goodput_curve(model); });
}

// A checkpoint is saved between two updates.
TEST(GoodputTest, IntervalsAreWholeUpdates) {
  FailureModel model{.hosts = 4, .step = 7.0};
  EXPECT_EQ(updates_between(model, 1.0), 1);
  EXPECT_EQ(updates_between(model, 24.0), 3);
  model.partner_interval = 14.0;
  EXPECT_EQ(updates_between(model, 14.0), 2);
  EXPECT_EQ(updates_between(model, 63.0), 10);
}

TEST(BestIntervalTest, IsDalysWhereRestartsAreShort) {
  for (const double between : {kHour, 24.0 * kHour})
    for (const double stall : {1.0, 20.0}) {
      const FailureModel model = failing_every(between, stall, 1.0);
      const double best = best_simulated_interval(model, failure_history(model, kMany));
      EXPECT_NEAR(best / best_interval_by_formula(model), 1.0, 0.2) << between << ' ' << stall;
    }
}

// With other random numbers, too.
TEST(BestIntervalTest, HardlyDependsOnTheHistory) {
  const FailureModel model = failing_every(6.0 * kHour, 2.0, 60.0);
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const double best = best_simulated_interval(model, failure_history(model, kMany, seed));
    EXPECT_NEAR(best / best_interval_by_formula(model), 1.0, 0.1) << seed;
  }
}

// The mean time between failures is that of exponential times, also with few of many hosts up.
TEST(FailureHistoryTest, HasTheRateOfItsHosts) {
  FailureModel model = failing_every(kHour, 0.0, 0.0, 10);
  model.away = 10.0 * kHour;  // half of the hosts
  const FailureHistory history = failure_history(model, kMany);
  EXPECT_NEAR(history.end / static_cast<double>(kMany), seconds_between_failures(model),
              0.03 * kHour);
  EXPECT_DOUBLE_EQ(seconds_between_failures(model), 2.0 * kHour);
  double last = 0.0;
  int up = model.hosts;
  for (const HostEvent& event : history.events) {
    EXPECT_GE(event.time, last);
    last = event.time;
    up += event.lost ? -1 : 1;
    ASSERT_TRUE(up >= 0 && up <= model.hosts);
  }
}

TEST(GoodputTest, OneHostStandsStillWhileItIsAway) {
  FailureModel model = failing_every(10.0 * kHour, 0.0, 0.0, 1);
  model.away = 2.0 * kHour;
  const Goodput run = simulated_goodput(model, failure_history(model, kMany), 1.0);
  EXPECT_NEAR(run.restarting, 2.0 / 12.0, 0.005);
  EXPECT_NEAR(run.goodput, 10.0 / 12.0, 0.005);
  EXPECT_NEAR(run.hosts, 10.0 / 12.0, 0.005);
}

// Two hosts that are mostly away: often both are lost, and the run waits for the first that is
// back.
TEST(GoodputTest, AllHostsMayBeLost) {
  FailureModel model = failing_every(kHour, 1.0, 10.0, 2);
  model.away = 10.0 * kHour;
  const Goodput run = simulated_goodput(model, failure_history(model, kMany), 60.0);
  EXPECT_GT(run.restarting, 0.5);
  EXPECT_GT(run.goodput, 0.0);
  EXPECT_NEAR(sum_of(run), 1.0, 1e-9);
}

TEST(GoodputTest, OthersShareTheWorkAsTheModelSays) {
  FailureModel model = failing_every(kHour, 0.0, 0.0, 10);
  model.away = 2.0 * kHour;
  const FailureHistory history = failure_history(model, kMany);
  const double even = simulated_goodput(model, history, 1.0).missing;
  EXPECT_NEAR(even, 2.0 / 12.0, 0.005);
  // A pipeline of whose replicas each takes two hosts loses both.
  model.throughput = [](std::int32_t away) { return std::max(0.1, 1.0 - 0.2 * away); };
  EXPECT_NEAR(simulated_goodput(model, history, 1.0).missing, 2.0 * even, 0.01);
  EXPECT_NEAR(goodput_by_formula(model, 1.0), 1.0 - 2.0 * even, 0.02);
}

TEST(GoodputTest, RefusesWhatCannotBe) {
  const auto message = [](const FailureModel& model) {
    return message_of(ErrorKind::Config, [&] { (void)failure_history(model, 1); });
  };
  EXPECT_EQ(message({.hosts = 0}), "a run on 0 hosts: expected 1 or more");
  EXPECT_EQ(message({.failures_per_day = -1.0}), "-1 failures a day: expected a number from 0");
  EXPECT_EQ(message({.step = 0.0}), "an update must take more than 0 seconds");
  EXPECT_EQ(message({.restart = std::numeric_limits<double>::infinity()}),
            "inf seconds of a restart: expected a number from 0");
  EXPECT_EQ(message({.away = std::nan("")}),
            "nan seconds that a host is away: expected a number from 0");
}

TEST(GoodputCurveTest, IsPrintedAndDrawn) {
  FailureModel model = failing_every(24.0 * kHour, 0.5, 60.0, 256);
  model.notice = 600.0;
  const GoodputCurve curve = goodput_curve(model);
  EXPECT_GE(curve.points.size(), 10U);
  for (const GoodputCurve::Point& point : curve.points)
    EXPECT_LE(point.simulated.goodput, curve.simulated_best.simulated.goodput + 1e-4);
  const std::string text = to_text(curve);
  for (const char* part : {"256 hosts, a failure every 24 h", "by Daly's formula",
                           "`checkpoint-every` ", "10 min to notice it"})
    EXPECT_NE(text.find(part), std::string::npos) << part << '\n' << text;
  EXPECT_EQ(to_text(goodput_curve(model)), text);
  EXPECT_EQ(to_json(curve).dump(2), to_json(goodput_curve(model)).dump(2));
  EXPECT_EQ(test::problem_of_xml(to_svg(curve)), "");
  EXPECT_EQ(minutes_text(30.0), "1minutes");
  EXPECT_EQ(minutes_text(270.0), "4.5minutes");
  EXPECT_EQ(minutes_text(3600.0), "60minutes");
  model.checkpoint_stall = 0.001;
  EXPECT_NE(to_text(goodput_curve(model)).find("updates\n"), std::string::npos);
}

}  // namespace
}  // namespace millrace::partition
