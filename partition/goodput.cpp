// SPDX-License-Identifier: Apache-2.0
#include "partition/goodput.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "core/random.hpp"

namespace millrace::partition {
namespace {

constexpr double kDaySeconds = 86400.0;

double rate_of(const FailureModel& model) { return model.failures_per_day / kDaySeconds; }

double recovery(const FailureModel& model) { return model.notice + model.probe + model.restart; }

void require_possible(const FailureModel& model) {
  if (model.hosts < 1)
    fail(ErrorKind::Config, "a run on {} hosts: expected 1 or more", model.hosts);
  if (!(model.step > 0.0)) fail(ErrorKind::Config, "an update must take more than 0 seconds");
  for (const auto& [value, name] : std::initializer_list<std::pair<double, const char*>>{
           {model.failures_per_day, "failures a day"},
           {model.step, "seconds of an update"},
           {model.checkpoint_stall, "seconds of a checkpoint"},
           {model.partner_interval, "seconds between snapshots"},
           {model.partner_stall, "seconds of a snapshot"},
           {model.notice, "seconds to notice a loss"},
           {model.probe, "seconds to find the hosts"},
           {model.restart, "seconds of a restart"},
           {model.away, "seconds that a host is away"}})
    if (!(value >= 0.0) || !std::isfinite(value))
      fail(ErrorKind::Config, "{} {}: expected a number from 0", value, name);
}

/// The share of the time in which a host is up.
double availability(const FailureModel& model) { return 1.0 / (1.0 + rate_of(model) * model.away); }

double throughput(const FailureModel& model, std::int32_t away) {
  if (model.throughput) return model.throughput(away);
  return static_cast<double>(model.hosts - away) / model.hosts;
}

/// The work between what a failure leaves: `units` of them from one checkpoint to the next.
struct Rhythm {
  double units = 1.0;
  double work = 0.0;  ///< seconds of a unit, with all hosts
  bool snapshots = false;
};

Rhythm rhythm_of(const FailureModel& model, double interval) {
  const double updates = std::max(1.0, std::round(interval / model.step));
  const double each = std::max(1.0, std::round(model.partner_interval / model.step));
  if (model.partner_interval == 0.0 || model.hosts == 1 || each >= updates)
    return {.work = updates * model.step};
  return {.units = std::round(updates / each), .work = each * model.step, .snapshots = true};
}

double snapshot_stall(const FailureModel& model, const Rhythm& rhythm) {
  return rhythm.snapshots ? model.partner_stall : 0.0;
}

/// The probability that a failure loses the snapshots: of two hosts with the only copy of a part
/// one is lost before the next snapshot, `unit` seconds after the restart.
double loses_snapshots(const FailureModel& model, double unit) {
  return -std::expm1(-2.0 * rate_of(model) * (recovery(model) + unit));
}

}  // namespace

double seconds_between_failures(const FailureModel& model) {
  return 1.0 / (rate_of(model) * model.hosts * availability(model));
}

double young_interval(double stall, double between_failures) {
  return std::sqrt(2.0 * stall * between_failures);
}

double daly_interval(double stall, double between_failures) {
  const double x = stall / (2.0 * between_failures);
  if (x >= 1.0) return between_failures;
  return young_interval(stall, between_failures) * (1.0 + std::sqrt(x) / 3.0 + x / 9.0) - stall;
}

double seconds_between_losses(const FailureModel& model) {
  const double between = seconds_between_failures(model);
  if (model.partner_interval == 0.0 || model.hosts == 1) return between;
  return between / loses_snapshots(model, model.partner_interval + model.partner_stall);
}

double best_interval_by_formula(const FailureModel& model) {
  return std::max(model.step, daly_interval(model.checkpoint_stall, seconds_between_losses(model)));
}

std::int64_t updates_between(const FailureModel& model, double interval) {
  const Rhythm rhythm = rhythm_of(model, interval);
  return std::llround(rhythm.units * rhythm.work / model.step);
}

double goodput_by_formula(const FailureModel& model, double interval) {
  const Rhythm rhythm = rhythm_of(model, interval);
  const double stall = model.checkpoint_stall / rhythm.units + snapshot_stall(model, rhythm);
  if (model.failures_per_day == 0.0) return rhythm.work / (rhythm.work + stall);
  // The speed with the mean number of hosts that are away, between two whole numbers.
  const double away = model.hosts * (1.0 - availability(model));
  const auto below = std::min(static_cast<std::int32_t>(away), model.hosts - 1);
  const double share = away - below;
  const double speed =
      (1.0 - share) * throughput(model, below) + share * throughput(model, below + 1);
  const double between = seconds_between_failures(model);
  const double unit = rhythm.work / speed + stall;
  double goodput =
      rhythm.work / (between * std::exp(recovery(model) / between) * std::expm1(unit / between));
  if (model.away > recovery(model))
    goodput /= 1.0 + (model.checkpoint_stall + model.restart) / between;
  if (rhythm.snapshots)
    goodput /= 1.0 + loses_snapshots(model, unit) * 0.5 * rhythm.units * unit / between;
  return goodput;
}

FailureHistory failure_history(const FailureModel& model, std::int64_t failures,
                               std::uint64_t seed) {
  require_possible(model);
  if (model.failures_per_day == 0.0) return {.events = {}, .end = 365.0 * kDaySeconds};
  const RandomStream stream(seed, RandomPurpose::HostFailures);
  FailureHistory history;
  std::deque<double> back;  // when the hosts that are away return, the first first
  std::int32_t up = model.hosts;
  double now = 0.0;
  for (std::int64_t i = 0; i < failures; ++i) {
    const RandomBlock random = stream.block(0, static_cast<std::uint64_t>(i));
    // Failures of one host to come: hosts that are away do not fail.
    double hazard = -std::log(uniform01_double(random[0], random[1]));
    while (!back.empty() && (up == 0 || now + hazard / (rate_of(model) * up) >= back.front())) {
      hazard -= (back.front() - now) * rate_of(model) * up;
      now = back.front();
      back.pop_front();
      ++up;
      history.events.push_back({.time = now, .lost = false, .draw = 0.0});
    }
    now += std::max(0.0, hazard) / (rate_of(model) * up);
    --up;
    back.push_back(now + model.away);
    history.events.push_back(
        {.time = now, .lost = true, .draw = uniform01_double(random[2], random[3])});
  }
  history.end = now;
  return history;
}

namespace {

/// A run that lives through a history.
class Replay {
 public:
  Replay(const FailureModel& model, double interval)
      : model_(model), rhythm_(rhythm_of(model, interval)), up_(model.hosts) {}

  Goodput live(const FailureHistory& history) {
    for (const HostEvent& event : history.events) {
      advance(event.time);
      event.lost ? lose(event.draw) : take_in();
    }
    advance(history.end);
    sum_.goodput -= sum_.lost;
    for (double* part :
         {&sum_.goodput, &sum_.lost, &sum_.restarting, &sum_.saving, &sum_.missing, &sum_.hosts})
      *part /= now_;
    return sum_;
  }

 private:
  void advance(double time) {
    const double begin = std::clamp(ready_, now_, time);
    sum_.hosts += up_ * (time - now_);
    sum_.restarting += begin - now_;
    if (time > begin) run(time - begin);
    now_ = time;
  }

  /// Works from a checkpoint or a snapshot on, whole rounds from checkpoint to checkpoint at once.
  void run(double seconds) {
    const double speed = throughput(model_, model_.hosts - up_);
    const double unit = rhythm_.work / speed;
    const double cycle = unit + snapshot_stall(model_, rhythm_);
    const double rest = (rhythm_.units - units_) * cycle + model_.checkpoint_stall;
    double worked = 0.0;
    double left = seconds;
    if (left >= rest) {
      const double round = rhythm_.units * cycle + model_.checkpoint_stall;
      const double rounds = std::floor((left - rest) / round);
      worked = (rhythm_.units - units_ + rounds * rhythm_.units) * unit;
      left = std::max(0.0, left - rest - rounds * round);
      units_ = 0.0;
      exposed_ = false;
    }
    const double whole = std::min(std::floor(left / cycle), rhythm_.units - units_);
    units_ += whole;
    exposed_ = exposed_ && whole == 0.0;
    const double begun = units_ == rhythm_.units ? 0.0 : std::min(left - whole * cycle, unit);
    partial_ = begun * speed;
    worked += whole * unit + begun;
    sum_.goodput += worked * speed;
    sum_.missing += worked * (1.0 - speed);
    sum_.saving += std::max(0.0, seconds - worked);  // not less, by rounding
  }

  void lose(double draw) {
    const bool kept = rhythm_.snapshots && !(exposed_ && draw * up_ < 2.0);
    sum_.lost += partial_ + (kept ? 0.0 : units_ * rhythm_.work);
    partial_ = 0.0;
    if (!kept) units_ = 0.0;
    exposed_ = true;
    --up_;
    ready_ = up_ == 0 ? std::numeric_limits<double>::infinity() : now_ + recovery(model_);
  }

  /// A host that is back while the run restarts is taken in by that restart.
  void take_in() {
    if (up_++ == 0) {
      ready_ = now_ + model_.probe + model_.restart;
    } else if (now_ > ready_) {
      units_ = partial_ = 0.0;
      exposed_ = false;
      ready_ = now_ + model_.checkpoint_stall + model_.restart;
    }
  }

  const FailureModel& model_;
  Rhythm rhythm_;
  std::int32_t up_;
  double now_ = 0.0;
  double ready_ = 0.0;    ///< when the run goes on
  double units_ = 0.0;    ///< whole units since the newest checkpoint
  double partial_ = 0.0;  ///< work since the newest snapshot, or checkpoint
  bool exposed_ = false;  ///< since a failure there was no snapshot
  Goodput sum_;           ///< in seconds; `goodput` is all work, also lost one
};

constexpr std::int64_t kFailures = 20'000;

}  // namespace

Goodput simulated_goodput(const FailureModel& model, const FailureHistory& history,
                          double interval) {
  return Replay(model, interval).live(history);
}

double best_simulated_interval(const FailureModel& model, const FailureHistory& history) {
  const auto goodput_at = [&](double interval) {
    return simulated_goodput(model, history, interval).goodput;
  };
  double near = model.step;
  for (double interval = near, best = 0.0; interval < 0.01 * history.end; interval *= 2.0)
    if (const double goodput = goodput_at(interval); goodput > best) {
      best = goodput;
      near = interval;
    }
  // The top is flat, and each failure loses some part of an interval, so that the curve is not
  // quite smooth: the middle of what stands out of it, which is even in the logarithm.
  constexpr int kEighths = 16;  // of a doubling, to either side
  constexpr double kTop = 0.1;
  std::vector<double> values;
  for (int i = -kEighths; i <= kEighths; ++i)
    values.push_back(goodput_at(near * std::exp2(i / 8.0)));
  const auto [worst, best] = std::minmax_element(values.begin(), values.end());
  const double least = *best - kTop * (*best - *worst);
  double moment = 0.0;
  double weight = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    weight += std::max(0.0, values[i] - least);
    moment += std::max(0.0, values[i] - least) * static_cast<double>(i);
  }
  if (weight == 0.0) return near;
  return std::max(model.step, near * std::exp2((moment / weight - kEighths) / 8.0));
}

GoodputCurve goodput_curve(const FailureModel& model) {
  const FailureHistory history = failure_history(model, kFailures);
  if (model.failures_per_day == 0.0)
    fail(ErrorKind::Config, "0 failures a day: without failures no interval is the best");
  const auto point_at = [&](double interval) {
    const double whole = model.step * static_cast<double>(updates_between(model, interval));
    return GoodputCurve::Point{.interval = whole,
                               .simulated = simulated_goodput(model, history, whole),
                               .formula = goodput_by_formula(model, whole)};
  };
  GoodputCurve curve{.model = model,
                     .points = {},
                     .simulated_best = point_at(best_simulated_interval(model, history)),
                     .formula_best = point_at(best_interval_by_formula(model))};
  constexpr int kHalves = 10;  // halves of a doubling to either side
  for (int i = -kHalves; i <= kHalves; ++i) {
    const auto point = point_at(curve.simulated_best.interval * std::exp2(i / 2.0));
    if (curve.points.empty() || point.interval > curve.points.back().interval)
      curve.points.push_back(point);
  }
  return curve;
}

}  // namespace millrace::partition
