// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "train/lr_schedule.hpp"

namespace millrace::cli {
namespace {

using train::ScheduleConfig;
using train::ScheduleKind;
using train::TrainConfig;

ScheduleKind kind_of(std::string_view name) {
  if (name == "cosine") return ScheduleKind::Cosine;
  if (name == "exponential") return ScheduleKind::Exponential;
  if (name == "polynomial_decay_lr") return ScheduleKind::Polynomial;
  if (name == "piecewise") return ScheduleKind::Piecewise;
  if (name == "gradual-warmup") return ScheduleKind::GradualWarmup;
  return name == "lars-polynomial" ? ScheduleKind::LarsPolynomial : ScheduleKind::Stepped;
}

/// The highest rate of the run.
double base_rate(Reader& read, const FamilyRecipe& recipe, const TrainConfig& config) {
  if (config.schedule.kind == ScheduleKind::Polynomial)
    return read.real("poly-lr-initial-lr", 0.0012);
  if (read.given("abs-learning-rate")) return read.real("abs-learning-rate", 0.0);
  const std::optional<double> usual = recipe.exponent(config.optimiser.kind);
  if (!usual && !read.given("base-learning-rate"))
    fail(
        ErrorKind::Usage,
        "--optimiser {} has no default learning rate for {} on {}: give --base-learning-rate X for "
        "2^X times the total batch, or --abs-learning-rate",
        *read.options().text("optimiser"), config.model.model, config.data.dataset);
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

void resolve_polynomial(Reader& read, ScheduleConfig& schedule, double power) {
  schedule.power = read.real("poly-lr-decay-power", power);
  schedule.end_rate = read.real("poly-lr-end-lr", 1e-4);
}

void resolve_shape(Reader& read, const FamilyRecipe& recipe, const TrainConfig& config,
                   ScheduleConfig& schedule) {
  if (schedule.kind != ScheduleKind::Stepped) schedule.boundaries.clear();
  switch (schedule.kind) {
    case ScheduleKind::Stepped:
      schedule.decay = read.real("learning-rate-decay", 0.1);
      schedule.boundaries = read.reals("learning-rate-schedule", recipe.boundaries);
      return;
    case ScheduleKind::Piecewise:
      schedule.decay = read.real("learning-rate-decay", 0.1);
      schedule.cuts = train::cuts_at(read.reals("learning-rate-epochs", {30, 60, 80}),
                                     config.iterations_per_epoch);
      schedule.factors = falling_factors(schedule.decay, schedule.cuts.size() + 1);
      return;
    case ScheduleKind::Exponential:
      schedule.decay = read.real("lr-decay-rate", 0.97);
      schedule.drops = read.integer("lr-drops", 146);
      return;
    case ScheduleKind::Polynomial:
      return resolve_polynomial(read, schedule, 1.0);
    case ScheduleKind::LarsPolynomial:
      return resolve_polynomial(read, schedule, 2.0);
    case ScheduleKind::GradualWarmup:
      schedule.initial_rate = read.real("initial-learning-rate", 0.0);
      return;
    case ScheduleKind::Cosine:
      return;
  }
}

std::int64_t warmup_iterations(Reader& read, const TrainConfig& config, Notices& notices) {
  if (read.given("warmup-iterations")) return read.integer("warmup-iterations", 0);
  const Setting* given = read.options().find("warmup-epochs");
  if (read.given("iterations")) {
    if (given != nullptr)
      notices.push_back(
          fmt::format("{} is ignored: --iterations sets the length of the run", given->where));
    return 0;
  }
  const double warmup = read.real("warmup-epochs", 5.0);
  const double epochs = std::get<double>(read.effective().at("epochs"));
  const double length = std::floor(epochs * static_cast<double>(config.iterations_per_epoch));
  return static_cast<std::int64_t>(std::floor(length * warmup / epochs));
}

void resolve_warmup(Reader& read, TrainConfig& config, Notices& notices) {
  ScheduleConfig& schedule = config.schedule;
  if (schedule.kind == ScheduleKind::Polynomial) return;
  schedule.warmup_iterations = warmup_iterations(read, config, notices);
  const bool own =
      schedule.kind == ScheduleKind::GradualWarmup || schedule.kind == ScheduleKind::LarsPolynomial;
  if (own || schedule.warmup_iterations == 0) return;
  schedule.warmup = read.text("warmup", "scaled") == "linear" ? train::WarmupForm::Linear
                                                              : train::WarmupForm::Scaled;
}

/// The step after which the learning rate no longer falls. With --max-iterations it is the end of
/// --epochs, set by resolve_length().
void resolve_horizon(Reader& read, TrainConfig& config) {
  if (read.given("lr-horizon")) {
    config.schedule.horizon = read.integer("lr-horizon", 1);
  } else if (read.given("lr-horizon-epochs")) {
    config.schedule.horizon = static_cast<std::int64_t>(
        read.real("lr-horizon-epochs", 1.0) * static_cast<double>(config.iterations_per_epoch));
    if (config.schedule.horizon == 0)
      fail(ErrorKind::Config, "{}: less than one iteration; an epoch has {}",
           read.options().find("lr-horizon-epochs")->where, config.iterations_per_epoch);
  }
  const bool warms_longer =
      config.schedule.horizon > 0 && config.schedule.warmup_iterations >= config.schedule.horizon;
  if (warms_longer && (config.schedule.kind == ScheduleKind::GradualWarmup ||
                       config.schedule.kind == ScheduleKind::LarsPolynomial))
    fail(ErrorKind::Config,
         "the warm-up of {} iterations is not shorter than the learning-rate schedule of {}: "
         "shorten --warmup-epochs",
         config.schedule.warmup_iterations, config.schedule.horizon);
}

}  // namespace

void resolve_rate(Reader& read, const FamilyRecipe& recipe, TrainConfig& config, Notices& notices) {
  ScheduleConfig& schedule = config.schedule;
  schedule.kind = kind_of(read.text("lr-schedule", "stepped"));
  schedule.base_rate = base_rate(read, recipe, config);
  resolve_shape(read, recipe, config, schedule);
  resolve_warmup(read, config, notices);
  resolve_horizon(read, config);
}

}  // namespace millrace::cli
