// SPDX-License-Identifier: Apache-2.0
#include "models/registry.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/networks.hpp"

namespace millrace::models {
namespace {

/// Defaults of a family for one task.
struct Defaults {
  std::string_view size;
  NormKind norm = NormKind::Group;
  std::int64_t groups = 32;
  std::int64_t image = 224;
};

struct Family {
  std::string_view name;
  Graph (*build)(const ModelOptions&);
  std::vector<std::string> (*sizes)(Task);
  Defaults imagenet;
  Defaults cifar;
};

constexpr std::array<Family, 4> kFamilies = {
    {{"resnet", build_resnet, resnet_sizes, {"18"}, {"20", NormKind::Batch, 16, 32}},
     {"resnext", build_resnext, resnext_sizes, {"14"}, {"11", NormKind::Batch, 16, 32}},
     {"squeezenet", build_squeezenet, squeezenet_sizes, {"1.0"}, {"1.0", NormKind::Group, 32, 32}},
     {"efficientnet",
      build_efficientnet,
      efficientnet_sizes,
      {"B0", NormKind::Group, 4},
      {"cifar", NormKind::Group, 4, 32}}}};

const Family& find_family(std::string_view model) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (family.name == model) return family;
    names.emplace_back(family.name);
  }
  const std::string nearest = nearest_match(model, names);
  fail(ErrorKind::Config, "unknown model {}{}; models: {}", model,
       nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest), join(names, ", "));
}

}  // namespace

ModelOptions default_options(std::string_view model, Task task) {
  const Family& family = find_family(model);
  const bool cifar = task == Task::Cifar;
  const Defaults& defaults = cifar ? family.cifar : family.imagenet;
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

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names(kFamilies.size());
  std::ranges::transform(kFamilies, names.begin(), &Family::name);
  return names;
}

std::vector<std::string> model_sizes(std::string_view model, Task task) {
  return find_family(model).sizes(task);
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
