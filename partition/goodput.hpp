// SPDX-License-Identifier: Apache-2.0
//
// What failures of hosts leave of a run, on paper. A run saves a checkpoint every so many updates.
// When a host is lost, it notices that, looks for the hosts that are left, and goes on with them
// from the newest checkpoint. A host that is back is taken in by a checkpoint and a restart.
// Between checkpoints hosts may keep snapshots in the memory of a partner, which are gone if both
// are lost before the next one. Two ways to the same figures know nothing of each other: a
// simulation that replays a history of failures, and the formula of Daly ("A higher order estimate
// of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22,
// 2006) after Young ("A first order approximation to the optimum checkpoint interval", CACM 17,
// 1974). The formula is exact where a spare takes the place of a lost host at once; the rest is
// added to first order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/json.hpp"

namespace millrace::partition {

/// Times are in seconds.
struct FailureModel {
  std::int32_t hosts = 1;
  double failures_per_day = 0.0;  ///< of one host; the times between them are exponential
  double step = 1.0;              ///< of an update with all hosts
  double checkpoint_stall = 0.0;  ///< for which the run waits for a checkpoint
  double partner_interval = 0.0;  ///< of work between snapshots in the memory of partners; 0: none
  double partner_stall = 0.0;     ///< for which the run waits for such a snapshot
  double notice = 0.0;            ///< until the loss of a host is noticed
  double probe = 0.0;             ///< to find the hosts that are left
  double restart = 0.0;           ///< to start there again, up to the first update
  double away = 0.0;              ///< until a lost host is back; 0: a spare takes its place at once
  /// The share of the full speed that is left, above 0, with so many hosts away. Empty: the share
  /// of hosts that is left, because they share the work of the others.
  std::function<double(std::int32_t)> throughput = {};
};

/// Mean time between failures of any host of the run; infinite without failures.
[[nodiscard]] double seconds_between_failures(const FailureModel& model);

/// The seconds of work between checkpoints with which least is lost, for their stall and the mean
/// time between failures: to first order, and Daly's equation 37.
[[nodiscard]] double young_interval(double stall, double between_failures);
[[nodiscard]] double daly_interval(double stall, double between_failures);
/// Mean time between failures of which nothing newer than a checkpoint is left: all of them, or
/// with snapshots of partners those that lose the snapshots.
[[nodiscard]] double seconds_between_losses(const FailureModel& model);
/// Daly's interval for that time, at least an update.
[[nodiscard]] double best_interval_by_formula(const FailureModel& model);

/// The updates between checkpoints for an interval, which is in seconds of work with all hosts: at
/// least one, and a multiple of those between snapshots.
[[nodiscard]] std::int64_t updates_between(const FailureModel& model, double interval);

/// Updates that lasted over those of a run that nothing disturbs, in the same time.
[[nodiscard]] double goodput_by_formula(const FailureModel& model, double interval);

/// A host is lost, or back.
struct HostEvent {
  double time = 0.0;
  bool lost = false;
  double draw = 0.0;  ///< uniform in (0, 1): which host it is
};

/// It does not depend on the interval, so that figures of intervals differ by these alone.
struct FailureHistory {
  std::vector<HostEvent> events;
  double end = 0.0;
};

/// So many failures; the same for the same seed. Errors: Config for a model that cannot be.
[[nodiscard]] FailureHistory failure_history(const FailureModel& model, std::int64_t failures,
                                             std::uint64_t seed = 1);

/// Where the time of a run went: shares of it, whose sum is 1, and the mean number of its hosts.
struct Goodput {
  double goodput = 0.0;     ///< updates that lasted
  double lost = 0.0;        ///< updates that were computed again
  double restarting = 0.0;  ///< until the run goes on after a loss, or with a host that is back
  double saving = 0.0;      ///< checkpoints and snapshots
  double missing = 0.0;     ///< what the hosts that were away would have computed
  double hosts = 0.0;
};

/// Of a run with this interval that lives through the history of its model.
[[nodiscard]] Goodput simulated_goodput(const FailureModel& model, const FailureHistory& history,
                                        double interval);

/// The interval with the best simulated goodput.
[[nodiscard]] double best_simulated_interval(const FailureModel& model,
                                             const FailureHistory& history);

/// Goodput by interval.
struct GoodputCurve {
  struct Point {
    double interval = 0.0;
    Goodput simulated;
    double formula = 0.0;
  };
  FailureModel model;
  std::vector<Point> points;  ///< by interval
  Point simulated_best;
  Point formula_best;
};

/// Points by factors of the square root of 2 around the best one. Errors: as failure_history, and
/// Config without failures, for which there is no best interval.
[[nodiscard]] GoodputCurve goodput_curve(const FailureModel& model);

/// An interval as `checkpoint-every` takes it, at least one minute.
[[nodiscard]] std::string minutes_text(double seconds);

[[nodiscard]] std::string to_text(const GoodputCurve& curve);
[[nodiscard]] Json to_json(const GoodputCurve& curve);
/// A stand-alone picture: simulation as a line, formula as dots, and the best interval of both.
[[nodiscard]] std::string to_svg(const GoodputCurve& curve);

}  // namespace millrace::partition
