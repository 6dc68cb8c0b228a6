// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/update_rule.hpp"
#include "models/registry.hpp"

namespace millrace::cli {

/// The IPU trainer's defaults for a family of networks.
struct FamilyRecipe {
  std::int64_t batch_size = 0;
  double epochs = 0;
  double weight_decay = 0;
  double label_smoothing = 0;
  std::vector<std::string> decay_excludes;
  std::vector<double> boundaries;  ///< of a stepped schedule, as fractions of the run
  /// Exponents of 2 for the learning rate of one image; empty where the trainer has no default.
  std::optional<double> sgd_exponent;
  std::optional<double> momentum_exponent;
  std::optional<double> rmsprop_exponent;
  std::optional<double> lars_exponent;
  [[nodiscard]] std::optional<double> exponent(UpdateRule rule) const;
};

/// `model` is a name that models::default_options knows.
[[nodiscard]] FamilyRecipe family_recipe(std::string_view model, models::Task task);

}  // namespace millrace::cli
