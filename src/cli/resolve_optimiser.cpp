// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::cli {
namespace {

constexpr std::string_view kNoNames = "none";

UpdateRule rule_of(std::string_view option) {
  const auto row = std::find_if(kOptimisers.begin(), kOptimisers.end(),
                                [&](const OptimiserRow& each) { return each.option == option; });
  MILLRACE_ASSERT(row != kOptimisers.end());  // the table of options names the same ones
  return row->rule;
}

/// A list of names; "none" is the empty list.
std::vector<std::string> names(Reader& read, std::string_view option,
                               const std::vector<std::string>& otherwise) {
  const std::string usual = otherwise.empty() ? std::string(kNoNames) : join(otherwise, " ");
  const std::string text = read.text(option, usual);
  if (text == kNoNames) return {};
  std::vector<std::string> list = split_list(text, ' ');
  if (std::find(list.begin(), list.end(), kNoNames) != list.end())
    fail(ErrorKind::Usage,
         "{}: '{}' combines none with other names: give none alone, or the names without it",
         read.options().find(option)->where, text);
  return list;
}

void resolve_mean_square(Reader& read, double total_batch, train::OptimiserConfig& optimiser) {
  optimiser.epsilon = read.real("rmsprop-epsilon", 1e-3);
  if (!read.given("rmsprop-base-decay-exp")) {
    optimiser.mean_square_decay = read.real("rmsprop-decay", 0.9);
    return;
  }
  const double exponent = read.real("rmsprop-base-decay-exp", 0.0);
  optimiser.mean_square_decay = 1.0 - std::exp2(exponent) * total_batch;
  if (optimiser.mean_square_decay < 0.0)
    fail(ErrorKind::Config,
         "{}: 1 - 2^{} x a total batch of {} is {}, but a decay is from 0 to 1: lower the exponent",
         read.options().find("rmsprop-base-decay-exp")->where, exponent, total_batch,
         optimiser.mean_square_decay);
}

void resolve_lars(Reader& read, train::OptimiserConfig& optimiser) {
  optimiser.epsilon = read.real("lars-epsilon", 0.0);
  optimiser.trust = read.real("lars-eeta", optimiser.trust);
  optimiser.lars_skips = names(read, "lars-skip-list", {"beta", "gamma", "bias"});
  optimiser.weight_decay = read.follower_real("lars-weight-decay", optimiser.weight_decay);
}

void resolve_adam(Reader& read, train::OptimiserConfig& optimiser) {
  optimiser.momentum = read.real("adam-beta1", 0.9);
  optimiser.mean_square_decay = read.real("adam-beta2", 0.999);
  optimiser.epsilon = read.real("adam-epsilon", 1e-8);
}

/// What only this rule has.
void resolve_rule(Reader& read, const train::TrainConfig& config,
                  train::OptimiserConfig& optimiser) {
  switch (optimiser.kind) {
    case UpdateRule::Sgd:
      return;
    case UpdateRule::Momentum:
    case UpdateRule::MomentumRateInside:
    case UpdateRule::Nesterov:
      optimiser.momentum = read.real("momentum", 0.9);
      return;
    case UpdateRule::RmsProp:
      optimiser.momentum = read.real("momentum", 0.9);
      return resolve_mean_square(read, static_cast<double>(config.total_batch()), optimiser);
    case UpdateRule::Lars:
      optimiser.momentum = read.real("momentum", 0.9);
      return resolve_lars(read, optimiser);
    case UpdateRule::Adam:
    case UpdateRule::AdamW:
      return resolve_adam(read, optimiser);
  }
}

}  // namespace

void resolve_optimiser(Reader& read, const FamilyRecipe& recipe, train::TrainConfig& config) {
  train::OptimiserConfig& optimiser = config.optimiser;
  optimiser.kind = rule_of(read.text("optimiser", "SGD"));
  optimiser.weight_decay = read.real("weight-decay", recipe.weight_decay);
  optimiser.decay_excludes = names(read, "weight-decay-excludes", recipe.decay_excludes);
  optimiser.decay_form = read.text("weight-decay-form", "half-square") == "square"
                             ? train::DecayForm::Square
                             : train::DecayForm::HalfSquare;
  resolve_rule(read, config, optimiser);
  if (read.given("clip-norm")) optimiser.clip_norm = read.real("clip-norm", 0.0);
  if (config.pipeline.ranks.replicas > 1) optimiser.sharded = read.flag("shard-optimizer");
}

}  // namespace millrace::cli
