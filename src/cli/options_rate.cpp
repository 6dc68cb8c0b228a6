// SPDX-License-Identifier: Apache-2.0
#include "cli/option_rows.hpp"
#include "core/update_rule.hpp"
#include "train/lr_schedule.hpp"

namespace millrace::cli {
namespace {

using namespace option_words;  // NOLINT(google-build-using-namespace): the words of the table
using namespace train;         // NOLINT(google-build-using-namespace): the members that rows set
using Kind = LearningRateKind;

constexpr std::string_view kAdam = "--optimiser Adam or AdamW";
constexpr std::string_view kLars = "--optimiser LARS";

bool is_rmsprop(const TrainConfig& c) { return c.optimiser.kind == UpdateRule::RmsProp; }
bool is_lars(const TrainConfig& c) { return c.optimiser.kind == UpdateRule::Lars; }
bool is_adam(const TrainConfig& c) {
  return c.optimiser.kind == UpdateRule::Adam || c.optimiser.kind == UpdateRule::AdamW;
}
bool has_momentum(const TrainConfig& c) {
  return c.optimiser.kind != UpdateRule::Sgd && !is_adam(c);
}

template <Kind... kinds>
bool is(const TrainConfig& c) {
  return ((c.schedule.kind == kinds) || ...);
}
bool takes_warmup(const TrainConfig& c) { return !is<Kind::Polynomial>(c); }
/// Known once the length of the warm-up is.
bool is_warmed_up(const TrainConfig& c) {
  return c.schedule.warmup_iterations > 0 && !warms_up_itself(c.schedule.kind);
}

std::string_view optimiser_names() {
  static const std::string names =
      choices_of(std::span<const OptimiserRow>(kOptimisers), &OptimiserRow::option);
  return names;
}

void add_optimiser(OptionTable& table) {
  Rows rows(table, Section::Optimiser, kRuns, kFixed);
  rows.choice("optimiser", optimiser_names(), "all",
              "update rule; momentum-rate-inside multiplies the learning rate into the velocity, "
              "as Keras does")
      .alias("optimizer")
      .sets<&OptimiserConfig::kind>();
  rows.real("momentum", "X", from_zero_below(1.0), "IPU", "momentum coefficient")
      .needs("--optimiser momentum, RMSprop, LARS or Nesterov")
      .when(has_momentum)
      .sets<&OptimiserConfig::momentum>();
  rows.real("rmsprop-decay", "X", from_zero_below(1.0), "IPU",
            "decay of the moving average of squared gradients")
      .by_default(0.9)
      .needs("--optimiser RMSprop");
  rows.real("rmsprop-base-decay-exp", "X", between(-60.0, 20.0), "IPU 2.0",
            "exponent: the decay is 1 - 2^X times the total batch")
      .unit("power of 2")
      .needs("--optimiser RMSprop");
  rows.real("rmsprop-epsilon", "X", above_zero(), "IPU",
            "value added to the mean square before its square root is taken")
      .needs("--optimiser RMSprop")
      .when(is_rmsprop)
      .sets<&OptimiserConfig::epsilon>();
  rows.real("adam-beta1", "X", from_zero_below(1.0), "millrace",
            "decay of the moving average of gradients")
      .needs(kAdam)
      .when(is_adam)
      .sets<&OptimiserConfig::momentum>();
  rows.real("adam-beta2", "X", from_zero_below(1.0), "millrace",
            "decay of the moving average of squared gradients")
      .by_default(0.999)
      .needs(kAdam)
      .when(is_adam)
      .sets<&OptimiserConfig::mean_square_decay>();
  rows.real("adam-epsilon", "X", above_zero(), "millrace",
            "value added to the root of the mean square")
      .by_default(1e-8)
      .needs(kAdam)
      .when(is_adam)
      .sets<&OptimiserConfig::epsilon>();
}

void add_lars(OptionTable& table) {
  Rows rows(table, Section::Optimiser, kRuns, kFixed);
  rows.real("lars-eeta", "X", above_zero(), "IPU 2.0, Habana",
            "LARS coefficient: ratio of an update to its weights")
      .needs(kLars)
      .when(is_lars)
      .sets<&OptimiserConfig::trust>();
  rows.real("lars-epsilon", "X", between(0.0, 1.0), "IPU 2.0, Habana",
            "value added to the norm of the gradients")
      .by_default(0.0)
      .needs(kLars)
      .when(is_lars)
      .sets<&OptimiserConfig::epsilon>();
  rows.real("lars-weight-decay", "X", between(0.0, 1.0), "IPU 2.0", "weight decay with LARS")
      .default_text("--weight-decay")
      .needs(kLars);
  rows.names("lars-skip-list", "NAME ..", "IPU 2.0, Habana",
             "parts of names of parameters that are updated with plain momentum and no decay; "
             "none: no parameters")
      .by_default("beta gamma bias")
      .needs(kLars);
}

void add_decay(OptionTable& table) {
  Rows rows(table, Section::Optimiser, kRuns, kFixed);
  rows.real("weight-decay", "X", between(0.0, 1.0), "all",
            "coefficient of weight decay; 0 disables it")
      .default_text("1e-4; 1e-6 for CIFAR; EfficientNet 1e-5 on ImageNet")
      .sets<&OptimiserConfig::weight_decay>();
  rows.names("weight-decay-excludes", "NAME ..", "all",
             "parts of names of parameters without weight decay; none: all parameters decay")
      .default_text("beta gamma; none for CIFAR");
  rows.choice("weight-decay-form", "half-square|square", "Habana",
              "penalty on the weights; square is that of Keras, whose gradient is twice as large")
      .sets<&OptimiserConfig::decay_form>();
  rows.real("clip-norm", "X", above_zero(), "millrace",
            "largest norm of the gradients of all stages and replicas together; larger ones are "
            "scaled down to it")
      .default_text("no limit")
      .sets<&OptimiserConfig::clip_norm>()
      .if_given();
  rows.flag("shard-optimizer", "millrace",
            "shard the optimizer state: each replica keeps and updates its own whole tensors")
      .alias("shard-optimiser")
      .needs("--replicas")
      .may_change()
      .when(has_replicas)
      .sets<&OptimiserConfig::sharded>();
}

void add_rate(OptionTable& table) {
  Rows rows(table, Section::Rate, kRuns, kFixed);
  rows.real("base-learning-rate", "X", between(-60.0, 20.0), "IPU",
            "exponent: the learning rate is 2^X times the total batch")
      .default_text(
          "-8 SGD, -11 momentum; EfficientNet -7, -10, RMSprop -14; CIFAR -6, SqueezeNet -10")
      .unit("power of 2");
  rows.real("abs-learning-rate", "X", above_zero_to(1e6), "IPU 2.0",
            "learning rate, independent of the batch");
  rows.choice(
          "lr-schedule",
          "stepped|cosine|exponential|polynomial_decay_lr|piecewise|gradual-warmup|lars-polynomial",
          "all",
          "learning-rate schedule; stepped drops at fractions of the run, piecewise at epochs; "
          "gradual-warmup is SURFsara's, lars-polynomial Habana's")
      .sets<&ScheduleConfig::kind>();
}

void add_rate_curves(OptionTable& table) {
  Rows rows(table, Section::Rate, kRuns, kFixed);
  rows.real("learning-rate-decay", "X", above_zero_to(1.0), "IPU",
            "factor of the learning rate at each drop")
      .needs("--lr-schedule stepped or piecewise")
      .when(is<Kind::Stepped, Kind::Piecewise>)
      .sets<&ScheduleConfig::decay>();
  rows.reals("learning-rate-schedule", "X,X,..", between(0.0, 1.0), "IPU",
             "points at which the learning rate drops")
      .default_text("0.3,0.6,0.8,0.9; 0.5,0.75 for CIFAR")
      .unit("fractions of the run")
      .needs("--lr-schedule stepped")
      .when(is<Kind::Stepped>)
      .sets<&ScheduleConfig::boundaries>();
  rows.reals("learning-rate-epochs", "X,X,..", between(0.0, 1e6), "NVIDIA, Habana",
             "epochs after which the learning rate drops")
      .by_default(std::vector<double>{30, 60, 80})
      .unit("epochs")
      .needs("--lr-schedule piecewise");
  rows.real("lr-decay-rate", "X", above_zero_to(1.0), "IPU",
            "factor of the learning rate at each drop")
      .by_default(0.97)
      .needs("--lr-schedule exponential")
      .when(is<Kind::Exponential>)
      .sets<&ScheduleConfig::decay>();
  rows.integer("lr-drops", "N", at_least(1), "IPU", "number of drops in the whole run")
      .unit("drops")
      .needs("--lr-schedule exponential")
      .when(is<Kind::Exponential>)
      .sets<&ScheduleConfig::drops>();
  rows.real("poly-lr-initial-lr", "X", above_zero_to(1e6), "IPU", "initial learning rate")
      .by_default(0.0012)
      .needs("--lr-schedule polynomial_decay_lr")
      .when(is<Kind::Polynomial>)
      .sets<&ScheduleConfig::base_rate>();
  rows.real("poly-lr-end-lr", "X", between(0.0, 1e6), "IPU", "final learning rate")
      .by_default(0.0001)
      .needs("--lr-schedule polynomial_decay_lr or lars-polynomial")
      .when(is<Kind::Polynomial, Kind::LarsPolynomial>)
      .sets<&ScheduleConfig::end_rate>();
  rows.real("poly-lr-decay-power", "X", above_zero(), "IPU",
            "exponent of the remaining fraction of the run")
      .default_text("1; 2 for lars-polynomial")
      .needs("--lr-schedule polynomial_decay_lr or lars-polynomial");
  rows.real("initial-learning-rate", "X", between(0.0, 1e6), "SURFsara",
            "learning rate at the start of the warm-up")
      .needs("--lr-schedule gradual-warmup")
      .when(is<Kind::GradualWarmup>)
      .sets<&ScheduleConfig::initial_rate>();
}

void add_warmup(OptionTable& table) {
  Rows rows(table, Section::Rate, kRuns, kFixed);
  rows.real("warmup-epochs", "X", between(0.0, 1e6), "IPU",
            "length of the learning-rate warm-up; 0 disables it")
      .by_default(5.0)
      .unit("epochs")
      .needs(
          "--epochs (a run of --iterations has no warm-up) and a schedule other than "
          "polynomial_decay_lr")
      .commands(kTrainings);
  rows.integer("warmup-iterations", "N", between(0, 1e15), "SURFsara",
               "length of the learning-rate warm-up")
      .unit("weight updates")
      .needs("a schedule other than polynomial_decay_lr")
      .when(takes_warmup)
      .sets<&ScheduleConfig::warmup_iterations>()
      .if_given();
  rows.choice("warmup", "scaled|linear", "all",
              "scaled: a rising factor multiplies the schedule (IPU); linear: the rate rises from "
              "0 to its maximum, then follows the schedule (NVIDIA, Habana)")
      .needs("a warm-up and a schedule without a warm-up of its own")
      .when(is_warmed_up)
      .sets<&ScheduleConfig::warmup>();
  rows.real("lr-horizon-epochs", "X", above_zero(), "Habana",
            "epochs after which the learning rate no longer falls")
      .default_text("the length of the run")
      .unit("epochs")
      .commands(kTrainings);
  rows.integer("lr-horizon", "N", between(1, 1e15), "NVIDIA",
               "weight updates after which the learning rate no longer falls")
      .unit("weight updates")
      .sets<&ScheduleConfig::horizon>()
      .if_given();
}

}  // namespace

void add_rate_options(OptionTable& table) {
  add_optimiser(table);
  add_lars(table);
  add_decay(table);
  add_rate(table);
  add_rate_curves(table);
  add_warmup(table);
}

}  // namespace millrace::cli
