// SPDX-License-Identifier: Apache-2.0
#include "run/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"

namespace millrace::run {
namespace {

double stepped(const LearningRateConfig& config, std::int64_t iteration, std::int64_t total) {
  // Dividing by the inverse keeps decimal decays exact: 0.5 x 0.1^3 gives 0.0005, because 1 / 0.1
  // is exactly 10, and powers of 10 are exact while those of 0.1 are not.
  const double shrink = 1.0 / config.decay;
  double divisor = 1.0;
  for (const double fraction : config.boundaries) {
    const auto boundary = static_cast<std::int64_t>(fraction * static_cast<double>(total));
    if (iteration > boundary) divisor *= shrink;
  }
  return config.base_rate / divisor;
}

double cosine(const LearningRateConfig& config, std::int64_t iteration, std::int64_t total) {
  const double progress = static_cast<double>(iteration) / static_cast<double>(total);
  return config.base_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double exponential(const LearningRateConfig& config, std::int64_t iteration, std::int64_t total) {
  // In integers, so that rounding never delays a drop by an iteration.
  const std::int64_t drops = config.drops * iteration / total;
  return config.base_rate * std::pow(config.decay, static_cast<double>(drops));
}

/// The rate between base_rate and end_rate, where `left` is the fraction of the run that is left.
double falling(const LearningRateConfig& config, double left) {
  const double share = std::pow(left, config.power);
  return (config.base_rate - config.end_rate) * share + config.end_rate;
}

double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

double gradual_warmup(const LearningRateConfig& config, std::int64_t iteration,
                      std::int64_t total) {
  const std::int64_t warmup = config.warmup_iterations;
  if (iteration < warmup)
    return config.initial_rate +
           (config.base_rate - config.initial_rate) * share(iteration, warmup);
  return config.base_rate *
         (1.0 - share(iteration - warmup, std::max<std::int64_t>(total - warmup, 1)));
}

double lars_polynomial(const LearningRateConfig& config, std::int64_t iteration,
                       std::int64_t total) {
  const std::int64_t warmup = config.warmup_iterations;
  if (warmup > 0 && iteration <= warmup) return config.base_rate * share(iteration, warmup);
  const std::int64_t past = std::max<std::int64_t>(iteration - warmup, 1);
  return falling(config, 1.0 - share(past, total - warmup + 1));
}

double piecewise(const LearningRateConfig& config, std::int64_t iteration) {
  MILLRACE_ASSERT(config.factors.size() == config.cuts.size() + 1);
  const auto piece = std::lower_bound(config.cuts.begin(), config.cuts.end(), iteration);
  return config.base_rate * config.factors[static_cast<std::size_t>(piece - config.cuts.begin())];
}

/// The rate before a warm-up applied by WarmupForm.
double unwarmed(const LearningRateConfig& config, std::int64_t iteration, std::int64_t total) {
  switch (config.kind) {
    case LearningRateKind::Stepped:
      return stepped(config, iteration, total);
    case LearningRateKind::Cosine:
      return cosine(config, iteration, total);
    case LearningRateKind::Exponential:
      return exponential(config, iteration, total);
    case LearningRateKind::Polynomial:
      return falling(config, 1.0 - share(iteration, total));
    case LearningRateKind::GradualWarmup:
      return gradual_warmup(config, iteration, total);
    case LearningRateKind::LarsPolynomial:
      return lars_polynomial(config, iteration, total);
    case LearningRateKind::Piecewise:
      return piecewise(config, iteration);
  }
  return 0.0;
}

}  // namespace

double learning_rate_at(const LearningRateConfig& config, std::int64_t iteration,
                        std::int64_t total) {
  MILLRACE_ASSERT(iteration >= 0 && total > 0);
  std::int64_t at = iteration;
  if (config.horizon > 0) {
    total = config.horizon;
    at = std::min(at, total);
  }
  const double rate = unwarmed(config, at, total);
  if (iteration >= config.warmup_iterations || warms_up_itself(config.kind)) return rate;
  const double peak = config.warmup == WarmupForm::Scaled ? rate : config.base_rate;
  return peak * static_cast<double>(iteration) / static_cast<double>(config.warmup_iterations);
}

std::vector<std::int64_t> cuts_at(std::span<const double> epochs,
                                  std::int64_t iterations_per_epoch) {
  std::vector<std::int64_t> cuts;
  for (const double epoch : epochs)
    cuts.push_back(static_cast<std::int64_t>(epoch * static_cast<double>(iterations_per_epoch)));
  return cuts;
}

std::string_view field_of_rate(const Run& config) {
  if (config.learning_rate.kind == LearningRateKind::Polynomial) return "`poly-lr-initial-lr`";
  return config.rate.absolute ? "`abs-learning-rate`" : "`base-learning-rate`";
}

std::string_view field_of_warmup(const Run& config) {
  return config.rate.warmup_iterations ? "`warmup-iterations`" : "`warmup-epochs`";
}

}  // namespace millrace::run
