// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "run/complete_parts.hpp"
#include "run/field_rows.hpp"
#include "run/learning_rate.hpp"

namespace millrace::run {
namespace {

double mean_square_decay(const Patch& given, const Run& config) {
  const OptimiserRequest& asked = config.update;
  if (!asked.rmsprop_exponent) return asked.rmsprop_decay;
  const double total_batch = static_cast<double>(config.total_batch());
  const double decay = 1.0 - std::exp2(*asked.rmsprop_exponent) * total_batch;
  if (decay < 0.0)
    fail(ErrorKind::Config,
         "{}: 1 - 2^{} x a total batch of {} is {}, but a decay is from 0 to 1: lower the exponent",
         given.find("rmsprop-base-decay-exp")->where, *asked.rmsprop_exponent, total_batch, decay);
  return decay;
}

/// The highest rate of the run.
double base_rate(Run& config) {
  RateRequest& rate = config.rate;
  if (config.learning_rate.kind == LearningRateKind::Polynomial)
    return config.learning_rate.base_rate;
  if (rate.absolute) return *rate.absolute;
  const UpdateRule rule = config.optimiser.kind;
  if (!rate.exponent)
    rate.exponent = models::default_recipe(config.model.model, config.model.task).exponent(rule);
  if (!rate.exponent)
    fail(
        ErrorKind::Usage,
        "`optimiser` {} has no default learning rate for {} on {}: give `base-learning-rate` X for "
        "2^X times the total batch, or `abs-learning-rate`",
        choice_at(*find_field("optimiser"), static_cast<std::size_t>(rule)), config.model.model,
        config.data.dataset);
  return std::exp2(*rate.exponent) * static_cast<double>(config.total_batch());
}

/// 1, decay, decay^2, ..; dividing keeps powers of ten exact.
std::vector<double> falling_factors(double decay, std::size_t pieces) {
  std::vector<double> factors;
  double divisor = 1.0;
  for (std::size_t i = 0; i < pieces; ++i, divisor *= 1.0 / decay) factors.push_back(1.0 / divisor);
  return factors;
}

/// What a schedule has besides the members that its options set.
void resolve_shape(Run& config) {
  LearningRateConfig& rate = config.learning_rate;
  const bool lars = rate.kind == LearningRateKind::LarsPolynomial;
  if (rate.kind != LearningRateKind::Stepped) rate.boundaries.clear();
  if (lars || rate.kind == LearningRateKind::Polynomial) {
    if (!config.rate.power) config.rate.power = lars ? 2.0 : 1.0;
    rate.power = *config.rate.power;
  }
  if (rate.kind != LearningRateKind::Piecewise) return;
  rate.cuts = cuts_at(config.rate.drop_epochs, config.iterations_per_epoch);
  rate.factors = falling_factors(rate.decay, rate.cuts.size() + 1);
}

/// The usual warm-up is cut to the run. One that was asked for is not, nor are other trainers': the
/// rate then ends before its maximum.
std::int64_t warmup_iterations(const Patch& given, Run& config, Notices& notices) {
  RateRequest& rate = config.rate;
  if (rate.warmup_iterations) return *rate.warmup_iterations;
  if (config.length.iterations) {
    const Setting* const setting = given.find("warmup-epochs");
    if (setting != nullptr && std::get<double>(setting->value) > 0.0)
      notices.push_back(
          fmt::format("{} is ignored: `iterations` sets the length of the run", setting->where));
    return 0;
  }
  const double epochs = *config.length.epochs;
  const bool cut = !rate.warmup_epochs && epochs < RateRequest::kWarmupEpochs &&
                   given.find("dialect") == nullptr;
  // One that is cut is longer again in a run that is extended; so it is not recorded.
  if (!cut) rate.warmup_epochs = rate.warmup_epochs.value_or(RateRequest::kWarmupEpochs);
  const double warmup = cut ? epochs : *rate.warmup_epochs;
  const double length = std::floor(epochs * static_cast<double>(config.iterations_per_epoch));
  return static_cast<std::int64_t>(std::floor(length * warmup / epochs));
}

void complete_warmup(const Patch& given, Run& config, Notices& notices) {
  LearningRateConfig& rate = config.learning_rate;
  if (rate.kind == LearningRateKind::Polynomial) return;
  rate.warmup_iterations = warmup_iterations(given, config, notices);
}

/// The step after which the learning rate no longer falls. With `max-iterations` it is the end of
/// `epochs`, set by complete_length().
void complete_horizon(const Patch& given, Run& config) {
  LearningRateConfig& rate = config.learning_rate;
  if (config.rate.horizon) {
    rate.horizon = *config.rate.horizon;
  } else if (config.rate.horizon_epochs) {
    rate.horizon = static_cast<std::int64_t>(*config.rate.horizon_epochs *
                                             static_cast<double>(config.iterations_per_epoch));
    if (rate.horizon == 0)
      fail(ErrorKind::Config, "{}: less than one update; an epoch has {}",
           given.find("lr-horizon-epochs")->where, config.iterations_per_epoch);
  }
  // A run that ends before may have a warm-up that covers it.
  const bool goes_on = rate.horizon > 0 && rate.horizon < config.iterations;
  if (goes_on && rate.warmup_iterations >= rate.horizon && warms_up_itself(rate.kind))
    fail(ErrorKind::Config,
         "the warm-up of {} updates is not shorter than the learning-rate schedule of {}, which "
         "ends before the run of {}: shorten {}",
         rate.warmup_iterations, rate.horizon, config.iterations, field_of_warmup(config));
}

}  // namespace

void complete_optimiser(const Patch& given, Run& config) {
  OptimiserConfig& optimiser = config.optimiser;
  optimiser.weight_decay = config.update.weight_decay;
  if (optimiser.kind == UpdateRule::RmsProp)
    optimiser.mean_square_decay = mean_square_decay(given, config);
  if (optimiser.kind == UpdateRule::Lars)
    optimiser.weight_decay = config.update.lars_weight_decay.value_or(optimiser.weight_decay);
  else
    optimiser.lars_skips.clear();
}

std::string notice_of_warmup(const Run& config) {
  const LearningRateConfig& rate = config.learning_rate;
  const std::int64_t total = config.iterations;
  if (rate.warmup_iterations < std::max(rate.horizon, total)) return {};
  constexpr std::int64_t kSamples = 100'000;  // of a run of any length
  const double last = learning_rate_at(rate, total - 1, total);
  double peak = last;
  for (std::int64_t t = 0; t < total; t += std::max<std::int64_t>(total / kSamples, 1))
    peak = std::max(peak, learning_rate_at(rate, t, total));
  const auto if_so = [](bool so, std::string text) { return so ? std::move(text) : std::string(); };
  return fmt::format(
      "the warm-up covers {}{}: the learning rate peaks at {:.4g}{} and ends at "
      "{:.4g}; {} sets its length",
      total == 1 ? "the only update" : fmt::format("all {} updates", total),
      if_so(rate.warmup_iterations > total,
            fmt::format(" and would take {}", rate.warmup_iterations)),
      peak, if_so(peak < rate.base_rate, fmt::format(" instead of {:.4g}", rate.base_rate)), last,
      field_of_warmup(config));
}

void complete_rate(const Patch& given, Run& config, Notices& notices) {
  config.learning_rate.base_rate = base_rate(config);
  resolve_shape(config);
  complete_warmup(given, config, notices);
  complete_horizon(given, config);
}

}  // namespace millrace::run
