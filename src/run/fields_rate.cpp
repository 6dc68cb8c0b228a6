// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/error.hpp"
#include "core/text.hpp"
#include "core/update_rule.hpp"
#include "run/field_rows.hpp"
#include "run/learning_rate.hpp"

namespace millrace::run {

OptimiserConfig usual_optimiser(OptimiserKind kind) {
  OptimiserConfig optimiser;
  optimiser.kind = kind;
  if (kind == UpdateRule::Adam || kind == UpdateRule::AdamW) {
    optimiser.mean_square_decay = 0.999;
    optimiser.epsilon = 1e-8;
  } else if (kind == UpdateRule::Lars) {
    optimiser.epsilon = 0.0;
    optimiser.lars_skips = {"beta", "gamma", "bias"};
  }
  return optimiser;
}

namespace {

using namespace field_words;  // NOLINT(google-build-using-namespace): the words of the table
using Kind = LearningRateKind;

constexpr std::string_view kAdam = "`optimiser` Adam or AdamW";
constexpr std::string_view kLars = "`optimiser` LARS";

bool is_rmsprop(const Run& c) { return c.optimiser.kind == UpdateRule::RmsProp; }
bool is_lars(const Run& c) { return c.optimiser.kind == UpdateRule::Lars; }
bool is_adam(const Run& c) {
  return c.optimiser.kind == UpdateRule::Adam || c.optimiser.kind == UpdateRule::AdamW;
}
bool has_momentum(const Run& c) { return c.optimiser.kind != UpdateRule::Sgd && !is_adam(c); }

template <Kind... kinds>
bool is(const Run& c) {
  return ((c.learning_rate.kind == kinds) || ...);
}
bool takes_warmup(const Run& c) { return !is<Kind::Polynomial>(c); }
bool is_warmed_up(const Run& c) {
  if (!takes_warmup(c) || warms_up_itself(c.learning_rate.kind)) return false;
  if (c.rate.warmup_iterations) return *c.rate.warmup_iterations > 0;
  return c.length.epochs && c.rate.warmup_epochs.value_or(RateRequest::kWarmupEpochs) > 0.0;
}

bool decays_by_constant(const Run& c) { return is_rmsprop(c) && !c.update.rmsprop_exponent; }
/// Whether the rate is told as an exponent.
bool has_exponent(const Run& c) { return !is<Kind::Polynomial>(c) && !c.rate.absolute; }
bool has_rate(const Run& c) { return !is<Kind::Polynomial>(c); }
bool warms_up_by_epochs(const Run& c) {
  return takes_warmup(c) && c.length.epochs && !c.rate.warmup_iterations;
}
bool has_polynomial(const Run& c) { return is<Kind::Polynomial, Kind::LarsPolynomial>(c); }

constexpr std::string_view kNoNames = "none";

/// A list of names; "none" is the empty list.
template <std::vector<std::string> OptimiserConfig::*list>
Trait sets_names() {
  return written<list>(
      [](const Setting& given) {
        const auto& text = text_of(given);
        if (text == kNoNames) return std::vector<std::string>();
        std::vector<std::string> names = split_list(text, ' ');
        if (std::ranges::find(names, kNoNames) != names.end())
          fail(ErrorKind::Usage,
               "{}: '{}' combines none with other names: give none alone, or the names without it",
               given.where, text);
        return names;
      },
      [](const std::vector<std::string>& names) {
        return Value(names.empty() ? std::string(kNoNames) : join(names, " "));
      });
}

std::string_view optimiser_names() {
  static const std::string names =
      choices_of(std::span<const OptimiserRow>(kOptimisers), &OptimiserRow::option);
  return names;
}

void add_optimiser(FieldTable& table) {
  const Rows row(table, Section::Optimiser, kRuns, kMathematics);
  row("optimiser", choice(optimiser_names()), "all",
      "update rule; momentum-rate-inside multiplies the learning rate into the velocity, as Keras "
      "does",
      alias("optimizer"), sets<&OptimiserConfig::kind>(), main_option());
  row("momentum", real(from_zero_below(1.0)), "IPU", "momentum coefficient",
      needs("`optimiser` momentum, RMSprop, LARS or Nesterov"), harmless(), when(has_momentum),
      sets<&OptimiserConfig::momentum>());
  row("rmsprop-decay", real(from_zero_below(1.0)), "IPU",
      "decay of the moving average of squared gradients", needs("`optimiser` RMSprop"), harmless(),
      when(decays_by_constant), sets<&OptimiserRequest::rmsprop_decay>(),
      yields<&OptimiserConfig::mean_square_decay>());
  row("rmsprop-base-decay-exp", real(between(-60.0, 20.0)), "IPU 2.0",
      "exponent: the decay is 1 - 2^X times the total batch", unit("power of 2"),
      needs("`optimiser` RMSprop"), when(is_rmsprop), sets<&OptimiserRequest::rmsprop_exponent>());
  row("rmsprop-epsilon", real(above_zero()), "IPU",
      "value added to the mean square before its square root is taken",
      needs("`optimiser` RMSprop"), harmless(), when(is_rmsprop),
      sets<&OptimiserConfig::epsilon>());
}

void add_adam(FieldTable& table) {
  const Rows row(table, Section::Optimiser, kRuns, kMathematics, {needs(kAdam), when(is_adam)});
  row("adam-beta1", real(from_zero_below(1.0)), "millrace",
      "decay of the moving average of gradients", sets<&OptimiserConfig::momentum>());
  row("adam-beta2", real(from_zero_below(1.0)), "millrace",
      "decay of the moving average of squared gradients",
      by_default(usual_optimiser(UpdateRule::Adam).mean_square_decay),
      sets<&OptimiserConfig::mean_square_decay>());
  row("adam-epsilon", real(above_zero()), "millrace", "value added to the root of the mean square",
      by_default(usual_optimiser(UpdateRule::Adam).epsilon), sets<&OptimiserConfig::epsilon>());
}

void add_lars(FieldTable& table) {
  const Rows row(table, Section::Optimiser, kRuns, kMathematics, {needs(kLars)});
  row("lars-eeta", real(above_zero()), "IPU 2.0, Habana",
      "LARS coefficient: ratio of an update to its weights", when(is_lars),
      sets<&OptimiserConfig::trust>());
  row("lars-epsilon", real(between(0.0, 1.0)), "IPU 2.0, Habana",
      "value added to the norm of the gradients",
      by_default(usual_optimiser(UpdateRule::Lars).epsilon), when(is_lars),
      sets<&OptimiserConfig::epsilon>());
  row("lars-weight-decay", real(between(0.0, 1.0)), "IPU 2.0", "weight decay with LARS",
      default_text("`weight-decay`"), when(is_lars), sets<&OptimiserRequest::lars_weight_decay>());
  row("lars-skip-list", names("NAME .."), "IPU 2.0, Habana",
      "parts of names of parameters that are updated with plain momentum and no decay; none: no "
      "parameters",
      by_default(join(usual_optimiser(UpdateRule::Lars).lars_skips, " ")), when(is_lars),
      sets_names<&OptimiserConfig::lars_skips>());
}

void add_decay(FieldTable& table) {
  const Rows row(table, Section::Optimiser, kRuns, kMathematics);
  row("weight-decay", real(between(0.0, 1.0)), "all", "coefficient of weight decay; 0 disables it",
      default_text("1e-4; 1e-6 for CIFAR; EfficientNet 1e-5 on ImageNet"),
      sets<&OptimiserRequest::weight_decay>(), yields<&OptimiserConfig::weight_decay>());
  row("weight-decay-excludes", names("NAME .."), "all",
      "parts of names of parameters without weight decay; none: all parameters decay",
      default_text("beta gamma; none for CIFAR"), sets_names<&OptimiserConfig::decay_excludes>());
  row("weight-decay-form", choice("half-square|square"), "Habana",
      "penalty on the weights; square is that of Keras, whose gradient is twice as large",
      sets<&OptimiserConfig::decay_form>());
  row("clip-norm", real(above_zero()), "millrace",
      "largest norm of the gradients of all stages and replicas together; larger ones are scaled "
      "down to it",
      default_text("no limit"), sets<&OptimiserConfig::clip_norm>(), if_given());
  row("shard-optimizer", flag(), "millrace",
      "shard the optimizer state: each replica keeps and updates its own whole tensors",
      alias("shard-optimiser"), needs("`replicas`"), layout(), when(has_replicas),
      sets<&OptimiserConfig::sharded>());
}

void add_rate(FieldTable& table) {
  const Rows row(table, Section::Rate, kRuns, kMathematics);
  row("base-learning-rate", real(between(-60.0, 20.0)), "IPU",
      "exponent: the learning rate is 2^X times the total batch",
      default_text(
          "-8 SGD, -11 momentum; EfficientNet -7, -10, RMSprop -14; CIFAR -6, SqueezeNet -10"),
      unit("power of 2"), main_option(), when(has_exponent), sets<&RateRequest::exponent>());
  row("abs-learning-rate", real(above_zero_to(1e6)), "IPU 2.0",
      "learning rate, independent of the batch", alias("lr"), main_option(), when(has_rate),
      sets<&RateRequest::absolute>(), yields<&LearningRateConfig::base_rate>());
  row("lr-schedule",
      choice("stepped|cosine|exponential|polynomial_decay_lr|piecewise|gradual-warmup|lars-"
             "polynomial"),
      "all",
      "learning-rate schedule; stepped drops at fractions of the run, piecewise at epochs; "
      "gradual-warmup is SURFsara's, lars-polynomial Habana's",
      sets<&LearningRateConfig::kind>(), main_option());
}

/// The trainers accept the options of their other curves.
void add_rate_curves(FieldTable& table) {
  const Rows row(table, Section::Rate, kRuns, kMathematics, {harmless()});
  row("learning-rate-decay", real(above_zero_to(1.0)), "IPU",
      "factor of the learning rate at each drop", needs("`lr-schedule` stepped or piecewise"),
      when(is<Kind::Stepped, Kind::Piecewise>), sets<&LearningRateConfig::decay>());
  row("learning-rate-schedule", reals("X,X,..", between(0.0, 1.0)), "IPU",
      "points at which the learning rate drops",
      default_text("0.3,0.6,0.8,0.9; 0.5,0.75 for CIFAR"), unit("fractions of the run"),
      needs("`lr-schedule` stepped"), when(is<Kind::Stepped>),
      sets<&LearningRateConfig::boundaries>());
  row("learning-rate-epochs", reals("X,X,..", between(0.0, 1e6)), "NVIDIA, Habana",
      "epochs after which the learning rate drops", unit("epochs"),
      needs("`lr-schedule` piecewise"), when(is<Kind::Piecewise>),
      sets<&RateRequest::drop_epochs>(),
      yields<&LearningRateConfig::cuts, &LearningRateConfig::factors>());
  row("lr-decay-rate", real(above_zero_to(1.0)), "IPU", "factor of the learning rate at each drop",
      by_default(0.97), needs("`lr-schedule` exponential"), when(is<Kind::Exponential>),
      sets<&LearningRateConfig::decay>());
  row("lr-drops", integer(at_least(1)), "IPU", "number of drops in the whole run", unit("drops"),
      needs("`lr-schedule` exponential"), when(is<Kind::Exponential>),
      sets<&LearningRateConfig::drops>());
  row("poly-lr-initial-lr", real(above_zero_to(1e6)), "IPU", "initial learning rate",
      by_default(0.0012), needs("`lr-schedule` polynomial_decay_lr"), when(is<Kind::Polynomial>),
      sets<&LearningRateConfig::base_rate>());
  row("poly-lr-end-lr", real(between(0.0, 1e6)), "IPU", "final learning rate", by_default(0.0001),
      needs("`lr-schedule` polynomial_decay_lr or lars-polynomial"),
      when(is<Kind::Polynomial, Kind::LarsPolynomial>), sets<&LearningRateConfig::end_rate>());
  row("poly-lr-decay-power", real(above_zero()), "IPU",
      "exponent of the remaining fraction of the run", default_text("1; 2 for lars-polynomial"),
      needs("`lr-schedule` polynomial_decay_lr or lars-polynomial"), when(has_polynomial),
      sets<&RateRequest::power>(), yields<&LearningRateConfig::power>());
  row("initial-learning-rate", real(between(0.0, 1e6)), "SURFsara",
      "learning rate at the start of the warm-up", needs("`lr-schedule` gradual-warmup"),
      when(is<Kind::GradualWarmup>), sets<&LearningRateConfig::initial_rate>());
}

void add_warmup(FieldTable& table) {
  const Rows row(table, Section::Rate, kRuns, kMathematics);
  row("warmup-epochs", real(between(0.0, 1e6)), "IPU",
      "length of the learning-rate warm-up; 0 disables it", by_default(RateRequest::kWarmupEpochs),
      unit("epochs"),
      needs("`epochs` (a run of `iterations` has no warm-up) and a schedule other than "
            "polynomial_decay_lr"),
      commands(kTrainings), when(warms_up_by_epochs), sets<&RateRequest::warmup_epochs>());
  row("warmup-iterations", integer(between(0, 1e15)), "SURFsara",
      "length of the learning-rate warm-up", unit("weight updates"),
      needs("a schedule other than polynomial_decay_lr"), when(takes_warmup),
      sets<&RateRequest::warmup_iterations>(), yields<&LearningRateConfig::warmup_iterations>());
  row("warmup", choice("scaled|linear"), "all",
      "scaled: a rising factor multiplies the schedule (IPU); linear: the rate rises from 0 to its "
      "maximum, then follows the schedule (NVIDIA, Habana)",
      needs("a warm-up and a schedule without a warm-up of its own"), when(is_warmed_up),
      sets<&LearningRateConfig::warmup>());
  row("lr-horizon-epochs", real(above_zero()), "Habana",
      "epochs after which the learning rate no longer falls", default_text("the length of the run"),
      unit("epochs"), commands(kTrainings), sets<&RateRequest::horizon_epochs>());
  row("lr-horizon", integer(between(1, 1e15)), "NVIDIA",
      "weight updates after which the learning rate no longer falls", unit("weight updates"),
      sets<&RateRequest::horizon>(), yields<&LearningRateConfig::horizon>());
}

}  // namespace

void add_rate_fields(FieldTable& table) {
  add_optimiser(table);
  add_adam(table);
  add_lars(table);
  add_decay(table);
  add_rate(table);
  add_rate_curves(table);
  add_warmup(table);
}

}  // namespace millrace::run
