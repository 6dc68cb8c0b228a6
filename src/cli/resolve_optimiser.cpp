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

}  // namespace millrace::cli
