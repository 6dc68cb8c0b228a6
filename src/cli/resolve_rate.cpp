// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/resolve_parts.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "train/learning_rate.hpp"

namespace millrace::cli {
namespace {

using train::LearningRateConfig;
using train::LearningRateKind;
using train::TrainConfig;

constexpr std::string_view kNoNames = "none";

/// A list of names; "none" is the empty list.
std::vector<std::string> names_in(const std::string& text, const Setting* given) {
  if (text == kNoNames) return {};
  std::vector<std::string> list = split_list(text, ' ');
  if (std::find(list.begin(), list.end(), kNoNames) != list.end())
    fail(ErrorKind::Usage,
         "{}: '{}' combines none with other names: give none alone, or the names without it",
         given->where, text);
  return list;
}

void resolve_mean_square(Reader& read, double total_batch, train::OptimiserConfig& optimiser) {
  if (!read.given("rmsprop-base-decay-exp")) {
    optimiser.mean_square_decay = read.real("rmsprop-decay");
    return;
  }
  const double exponent = read.real("rmsprop-base-decay-exp");
  optimiser.mean_square_decay = 1.0 - std::exp2(exponent) * total_batch;
  if (optimiser.mean_square_decay < 0.0)
    fail(ErrorKind::Config,
         "{}: 1 - 2^{} x a total batch of {} is {}, but a decay is from 0 to 1: lower the exponent",
         read.where("rmsprop-base-decay-exp"), exponent, total_batch, optimiser.mean_square_decay);
}

/// The highest rate of the run.
double base_rate(Reader& read, const FamilyRecipe& recipe, TrainConfig& config) {
  std::string& spelled = config.spelled.rate;
  if (config.learning_rate.kind == LearningRateKind::Polynomial) {
    spelled = read.spelling("poly-lr-initial-lr");
    return config.learning_rate.base_rate;
  }
  const bool absolute = read.given("abs-learning-rate");
  spelled = read.spelling(absolute ? "abs-learning-rate" : "base-learning-rate");
  if (absolute) return read.real("abs-learning-rate");
  const std::optional<double> usual = recipe.exponent(config.optimiser.kind);
  if (!usual && !read.given("base-learning-rate"))
    fail(
        ErrorKind::Usage,
        "--optimiser {} has no default learning rate for {} on {}: give --base-learning-rate X for "
        "2^X times the total batch, or --abs-learning-rate",
        std::get<std::string>(read.effective().at("optimiser")), config.model.model,
        config.data.dataset);
  return std::exp2(read.real("base-learning-rate", usual.value_or(0.0))) *
         static_cast<double>(config.total_batch());
}

/// 1, decay, decay^2, ..; dividing keeps powers of ten exact.
std::vector<double> falling_factors(double decay, std::size_t pieces) {
  std::vector<double> factors;
  double divisor = 1.0;
  for (std::size_t i = 0; i < pieces; ++i, divisor *= 1.0 / decay) factors.push_back(1.0 / divisor);
  return factors;
}

/// What a schedule has besides the members that its options set.
void resolve_shape(Reader& read, const TrainConfig& config, LearningRateConfig& rate) {
  const bool lars = rate.kind == LearningRateKind::LarsPolynomial;
  if (rate.kind != LearningRateKind::Stepped) rate.boundaries.clear();
  if (lars || rate.kind == LearningRateKind::Polynomial)
    rate.power = read.real("poly-lr-decay-power", lars ? 2.0 : 1.0);
  if (rate.kind != LearningRateKind::Piecewise) return;
  rate.cuts = train::cuts_at(read.reals("learning-rate-epochs"), config.iterations_per_epoch);
  rate.factors = falling_factors(rate.decay, rate.cuts.size() + 1);
}

/// Whether nothing says how long the warm-up is, or millrace's own option on its own command line.
/// It is then never longer than the run. Other trainers' warm-ups and recipes may be, and the rate
/// then ends before its maximum, as it does there.
bool limits_warmup(const Reader& read, const std::string& name) {
  if (!read.options().dialect.name.empty()) return false;
  const Setting* given = read.options().find(name);
  return given == nullptr || given->where == "--" + name;
}

std::int64_t warmup_iterations(Reader& read, const TrainConfig& config, Notices& notices) {
  if (read.given("warmup-iterations")) {
    const std::int64_t given = config.learning_rate.warmup_iterations;
    if (!limits_warmup(read, "warmup-iterations")) return given;
    return read.note("warmup-iterations", std::min(given, config.iterations));
  }
  const Setting* given = read.options().find("warmup-epochs");
  if (read.given("iterations")) {
    if (given != nullptr && std::get<double>(given->value) > 0.0)
      notices.push_back(
          fmt::format("{} is ignored: --iterations sets the length of the run", given->where));
    return 0;
  }
  double warmup = std::get<double>(read.options().value("warmup-epochs"));
  const double epochs = std::get<double>(read.effective().at("epochs"));
  const bool cut = warmup > epochs && limits_warmup(read, "warmup-epochs");
  if (cut) warmup = epochs;
  // A default that was cut is longer again in a run that is extended; so it is not recorded.
  if (!cut || given != nullptr) read.note("warmup-epochs", warmup);
  const double length = std::floor(epochs * static_cast<double>(config.iterations_per_epoch));
  return static_cast<std::int64_t>(std::floor(length * warmup / epochs));
}

void resolve_warmup(Reader& read, TrainConfig& config, Notices& notices) {
  LearningRateConfig& rate = config.learning_rate;
  if (rate.kind == LearningRateKind::Polynomial) return;
  rate.warmup_iterations = warmup_iterations(read, config, notices);
  const bool counted = read.given("warmup-iterations");
  config.spelled.warmup = read.spelling(counted ? "warmup-iterations" : "warmup-epochs");
  read.apply("warmup", config);
}

/// The step after which the learning rate no longer falls. With --max-iterations it is the end of
/// --epochs, set by resolve_length().
void resolve_horizon(Reader& read, TrainConfig& config) {
  if (!read.given("lr-horizon") && read.given("lr-horizon-epochs")) {
    config.learning_rate.horizon = static_cast<std::int64_t>(
        read.real("lr-horizon-epochs") * static_cast<double>(config.iterations_per_epoch));
    if (config.learning_rate.horizon == 0)
      fail(ErrorKind::Config, "{}: less than one update; an epoch has {}",
           read.where("lr-horizon-epochs"), config.iterations_per_epoch);
  }
  // A run that ends before may have a warm-up that covers it.
  const LearningRateConfig& rate = config.learning_rate;
  const bool goes_on = rate.horizon > 0 && rate.horizon < config.iterations;
  if (goes_on && rate.warmup_iterations >= rate.horizon && train::warms_up_itself(rate.kind))
    fail(ErrorKind::Config,
         "the warm-up of {} updates is not shorter than the learning-rate schedule of {}, which "
         "ends before the run of {}: shorten {}",
         rate.warmup_iterations, rate.horizon, config.iterations, config.spelled.warmup);
}

}  // namespace

void resolve_optimiser(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config) {
  train::OptimiserConfig& optimiser = config.optimiser;
  optimiser.weight_decay = recipe.weight_decay;
  read.apply(Section::Optimiser, config);
  const Options& options = read.options();
  const std::string excludes =
      recipe.decay_excludes.empty() ? std::string(kNoNames) : join(recipe.decay_excludes, " ");
  optimiser.decay_excludes =
      names_in(read.text("weight-decay-excludes", excludes), options.find("weight-decay-excludes"));
  if (optimiser.kind == UpdateRule::RmsProp)
    resolve_mean_square(read, static_cast<double>(config.total_batch()), optimiser);
  if (optimiser.kind != UpdateRule::Lars) return;
  optimiser.lars_skips = names_in(read.text("lars-skip-list"), options.find("lars-skip-list"));
  if (read.given("lars-weight-decay")) optimiser.weight_decay = read.real("lars-weight-decay");
}

std::string notice_of_warmup(const TrainConfig& config) {
  const LearningRateConfig& rate = config.learning_rate;
  const std::int64_t total = config.iterations;
  if (rate.warmup_iterations < std::max(rate.horizon, total)) return {};
  constexpr std::int64_t kSamples = 100'000;  // of a run of any length
  const double last = train::learning_rate_at(rate, total - 1, total);
  double peak = last;
  for (std::int64_t t = 0; t < total; t += std::max<std::int64_t>(total / kSamples, 1))
    peak = std::max(peak, train::learning_rate_at(rate, t, total));
  const auto if_so = [](bool so, std::string text) { return so ? std::move(text) : std::string(); };
  return fmt::format(
      "the warm-up covers {}{}: the learning rate peaks at {:.4g}{} and ends at "
      "{:.4g}; {} sets its length",
      total == 1 ? "the only update" : fmt::format("all {} updates", total),
      if_so(rate.warmup_iterations > total,
            fmt::format(" and would take {}", rate.warmup_iterations)),
      peak, if_so(peak < rate.base_rate, fmt::format(" instead of {:.4g}", rate.base_rate)), last,
      config.spelled.warmup);
}

void resolve_rate(Reader& read, const FamilyRecipe& recipe, TrainConfig& config, Notices& notices) {
  LearningRateConfig& rate = config.learning_rate;
  rate.boundaries = recipe.boundaries;
  read.apply(Section::Rate, config);
  rate.base_rate = base_rate(read, recipe, config);
  resolve_shape(read, config, rate);
  resolve_warmup(read, config, notices);
  resolve_horizon(read, config);
}

}  // namespace millrace::cli
