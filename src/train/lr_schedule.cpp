// SPDX-License-Identifier: Apache-2.0
#include "train/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace millrace::train {
namespace {

double stepped(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  // Dividing by the inverse keeps decimal decays exact: 0.5 x 0.1^3 gives 0.0005, because 1 / 0.1
  // is exactly 10, and powers of 10 are exact while those of 0.1 are not.
  const double shrink = 1.0 / schedule.decay;
  double divisor = 1.0;
  for (const double fraction : schedule.boundaries) {
    const auto boundary = static_cast<std::int64_t>(fraction * static_cast<double>(total));
    if (iteration > boundary) divisor *= shrink;
  }
  return schedule.base_rate / divisor;
}

double cosine(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  const double progress = static_cast<double>(iteration) / static_cast<double>(total);
  return schedule.base_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double exponential(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  // In integers, so that rounding never delays a drop by an iteration.
  const std::int64_t drops = schedule.drops * iteration / total;
  return schedule.base_rate * std::pow(schedule.decay, static_cast<double>(drops));
}

/// The rate between base_rate and end_rate, where `left` is the fraction of the run that is left.
double falling(const ScheduleConfig& schedule, double left) {
  const double share = std::pow(left, schedule.power);
  return (schedule.base_rate - schedule.end_rate) * share + schedule.end_rate;
}

double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

double gradual_warmup(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  const std::int64_t warmup = schedule.warmup_iterations;
  if (iteration < warmup)
    return schedule.initial_rate +
           (schedule.base_rate - schedule.initial_rate) * share(iteration, warmup);
  return schedule.base_rate * (1.0 - share(iteration - warmup, total - warmup));
}

double lars_polynomial(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  const std::int64_t warmup = schedule.warmup_iterations;
  if (warmup > 0 && iteration <= warmup) return schedule.base_rate * share(iteration, warmup);
  const std::int64_t past = std::max<std::int64_t>(iteration - warmup, 1);
  return falling(schedule, 1.0 - share(past, total - warmup + 1));
}

double piecewise(const ScheduleConfig& schedule, std::int64_t iteration) {
  MILLRACE_ASSERT(schedule.factors.size() == schedule.cuts.size() + 1);
  const auto piece = std::lower_bound(schedule.cuts.begin(), schedule.cuts.end(), iteration);
  return schedule.base_rate *
         schedule.factors[static_cast<std::size_t>(piece - schedule.cuts.begin())];
}

/// The rate before a warm-up applied by WarmupForm.
double unwarmed(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  switch (schedule.kind) {
    case LearningRateKind::Stepped:
      return stepped(schedule, iteration, total);
    case LearningRateKind::Cosine:
      return cosine(schedule, iteration, total);
    case LearningRateKind::Exponential:
      return exponential(schedule, iteration, total);
    case LearningRateKind::Polynomial:
      return falling(schedule, 1.0 - share(iteration, total));
    case LearningRateKind::GradualWarmup:
      return gradual_warmup(schedule, iteration, total);
    case LearningRateKind::LarsPolynomial:
      return lars_polynomial(schedule, iteration, total);
    case LearningRateKind::Piecewise:
      return piecewise(schedule, iteration);
  }
  return 0.0;
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, std::int64_t iteration, std::int64_t total) {
  MILLRACE_ASSERT(iteration >= 0 && total > 0);
  std::int64_t at = iteration;
  if (schedule.horizon > 0) {
    total = schedule.horizon;
    at = std::min(at, total);
  }
  const double rate = unwarmed(schedule, at, total);
  if (iteration >= schedule.warmup_iterations || warms_up_itself(schedule.kind)) return rate;
  const double peak = schedule.warmup == WarmupForm::Scaled ? rate : schedule.base_rate;
  return peak * static_cast<double>(iteration) / static_cast<double>(schedule.warmup_iterations);
}

std::vector<std::int64_t> cuts_at(std::span<const double> epochs,
                                  std::int64_t iterations_per_epoch) {
  std::vector<std::int64_t> cuts;
  for (const double epoch : epochs)
    cuts.push_back(static_cast<std::int64_t>(epoch * static_cast<double>(iterations_per_epoch)));
  return cuts;
}

}  // namespace millrace::train
