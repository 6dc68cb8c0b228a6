// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::models {

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

const Family& find_family(std::string_view model) {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (family.name == model) return family;
    names.emplace_back(family.name);
  }
  const std::string nearest = nearest_match(model, names);
  fail(ErrorKind::Config, "unknown model {}{}; models: {}", model,
       nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest), join(names, ", "));
}

ModelOptions default_options(std::string_view model, Task task) {
  const FamilyDefaults& defaults = find_family(model).defaults(task);
  const bool cifar = task == Task::Cifar;
  ModelOptions options;
  options.model = model;
  options.size = defaults.size;
  options.task = task;
  options.classes = cifar ? 10 : 1000;
  options.image = {defaults.image, defaults.image, 3};
  options.norm = defaults.norm;
  options.groups = defaults.groups;
  options.shortcut = cifar ? 'A' : 'B';
  return options;
}

const FamilyRecipe& default_recipe(std::string_view model, Task task) {
  return find_family(model == kGivenModel ? "resnet" : model).defaults(task).recipe;
}

ModelOptions given_options(std::shared_ptr<const Graph> graph, Task task) {
  ModelOptions options;
  options.model = kGivenModel;
  options.size = graph->name;
  options.task = task;
  options.classes = graph->classes;
  options.image = graph->input_shape;
  const auto normalised = std::ranges::any_of(
      graph->ops, [](const Op& op) { return std::holds_alternative<BatchNorm>(op.kind); });
  options.norm = normalised ? NormKind::Batch : NormKind::Group;
  options.given = {std::move(graph)};
  return options;
}

Graph build_model(const ModelOptions& options) {
  if (!options.given.graph) return find_family(options.model).build(options);
  Graph graph = *options.given.graph;
  for (Op& op : graph.ops)
    if (auto* norm = std::get_if<BatchNorm>(&op.kind)) norm->span = options.batch_norm_span;
  return graph;
}

std::optional<Graph> try_to_build(const ModelOptions& options) {
  try {
    return build_model(options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Config) throw;
    return std::nullopt;
  }
}

bool operator==(const GivenNetwork& a, const GivenNetwork& b) {
  if (a.graph == b.graph) return true;
  return a.graph && b.graph && *a.graph == *b.graph;
}

}  // namespace millrace::models
