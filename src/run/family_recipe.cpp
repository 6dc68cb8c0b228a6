// SPDX-License-Identifier: Apache-2.0
#include "run/complete_parts.hpp"

namespace millrace::run {
namespace {

FamilyRecipe cifar_recipe(std::int64_t batch_size, double epochs, double exponent) {
  return {.batch_size = batch_size,
          .epochs = epochs,
          .weight_decay = 1e-6,
          .decay_excludes = {},
          .boundaries = {0.5, 0.75},
          .sgd_exponent = exponent,
          .momentum_exponent = exponent,
          .rmsprop_exponent = exponent,
          .lars_exponent = exponent};
}

FamilyRecipe imagenet_recipe(std::int64_t batch_size) {
  return {.batch_size = batch_size,
          .epochs = 100,
          .weight_decay = 1e-4,
          .decay_excludes = {"beta", "gamma"},
          .boundaries = {0.3, 0.6, 0.8, 0.9},
          .sgd_exponent = -8,
          .momentum_exponent = -11,
          .rmsprop_exponent = {},
          .lars_exponent = {}};
}

FamilyRecipe efficientnet_imagenet() {
  FamilyRecipe recipe = imagenet_recipe(4);
  recipe.epochs = 350;
  recipe.weight_decay = 1e-5;
  recipe.label_smoothing = 0.1;
  recipe.sgd_exponent = -7;
  recipe.momentum_exponent = -10;
  recipe.rmsprop_exponent = -14;
  return recipe;
}

}  // namespace

std::optional<double> FamilyRecipe::exponent(UpdateRule rule) const {
  switch (rule) {
    case UpdateRule::Sgd:
      return sgd_exponent;
    case UpdateRule::Momentum:
    case UpdateRule::MomentumRateInside:
    case UpdateRule::Nesterov:
      return momentum_exponent;
    case UpdateRule::RmsProp:
      return rmsprop_exponent;
    case UpdateRule::Lars:
      return lars_exponent;
    case UpdateRule::Adam:  // no published recipe trains these networks with it
    case UpdateRule::AdamW:
      return std::nullopt;
  }
  return std::nullopt;
}

FamilyRecipe family_recipe(std::string_view model, models::Task task) {
  const bool cifar = task == models::Task::Cifar;
  if (model == "resnext") return cifar ? cifar_recipe(8, 160, -6) : imagenet_recipe(1);
  if (model == "squeezenet") return cifar ? cifar_recipe(128, 160, -10) : imagenet_recipe(2);
  if (model == "efficientnet") return cifar ? cifar_recipe(8, 300, -6) : efficientnet_imagenet();
  return cifar ? cifar_recipe(32, 160, -6) : imagenet_recipe(4);
}

}  // namespace millrace::run
