// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/tensor_checks.hpp"
#include "models/registry.hpp"
#include "tools/weights/keras.hpp"
#include "tools/weights/match.hpp"

namespace millrace::io {
namespace {

using models::BlockKind;
using models::Graph;
using models::ModelOptions;
using models::Parameter;
using models::Task;

/// "; did you mean layer1.0.conv1.weight?", or nothing.
std::string nearest_unused(const Match& match) {
  if (!match.misfit.starts_with("no tensor ") || match.unused.empty()) return {};
  std::vector<std::string> names;
  for (const NamedTensors::Named* named : match.unused) names.push_back(named->name);
  const std::string nearest = nearest_match(match.missing.front(), names);
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

/// "an" before a vowel, else "a".
std::string_view article_of(std::string_view name) {
  constexpr std::string_view kVowels = "aeiou";
  return !name.empty() && kVowels.find(name.front()) != std::string_view::npos ? "an" : "a";
}

/// "; the file holds a resnet-20 for CIFAR with 10 classes, as in akamaster", or nothing.
std::string held_by(const TensorFile& file) {
  try {
    return fmt::format("; the file holds {}", to_string(identify(file, kWeightStyles)));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data) throw;
    return {};
  }
}

[[noreturn]] void refuse(const NamedTensors& tensors, const Graph& graph, const Match& match) {
  const std::string path = tensors.file().path().string();
  const std::string held = held_by(tensors.file());
  if (!match.misfit.empty())
    fail(ErrorKind::Data, "{}: {}{}{}", path, match.misfit, nearest_unused(match), held);
  const NamedTensors::Named& first = *match.unused.front();
  fail(ErrorKind::Data, "{}: {} {} is not part of {} ({} of {} tensors are){}", path, first.name,
       shape_text(first.tensor->shape), graph.name, tensors.all().size() - match.unused.size(),
       tensors.all().size(), held);
}

std::vector<float> floats_of(const TensorFile& file, const std::string& name,
                             const SafeTensor& tensor) {
  try {
    return tensor.to_floats();
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}: {}", file.path().string(), name, error.what());
  }
}

/// Errors: Data for a value that the parameter cannot have.
std::vector<float> usable_floats(const TensorFile& file, const std::string& name,
                                 const SafeTensor& tensor, const Parameter& parameter) {
  std::vector<float> values = floats_of(file, name, tensor);
  if (const std::string bad = bad_value(values, tensor.shape, parameter.name); !bad.empty())
    fail(ErrorKind::Data, "{}: {}{}: the network cannot use this value: fetch the weights again",
         file.path().string(), name, bad);
  return values;
}

// ---- all networks that can be built

void add_residual(std::vector<ModelOptions>& all, const ModelOptions& base) {
  for (const BlockKind block : {BlockKind::Basic, BlockKind::Bottleneck})
    for (const char shortcut : {'B', 'A'})
      for (const auto stage_one :
           {models::StageOneShortcut::Identity, models::StageOneShortcut::Project}) {
        if (shortcut == 'A' && stage_one == models::StageOneShortcut::Project) continue;
        ModelOptions options = base;
        options.block = block;
        options.shortcut = shortcut;
        options.residual.stage_one = stage_one;
        all.push_back(std::move(options));
      }
}

/// ResNeXt's groups and their channels, from its first grouped convolution.
void add_resnext(std::vector<ModelOptions>& all, ModelOptions base, const NamedTensors& tensors) {
  const NamedTensors::Named* conv = tensors.find("layer1.0.conv2.weight");
  if (conv == nullptr || conv->tensor->shape.size() != 4 || conv->tensor->shape[1] < 1) return;
  base.resnext.group_dim = conv->tensor->shape[1];
  base.resnext.groups = conv->tensor->shape[0] / base.resnext.group_dim;
  if (base.resnext.groups < 2) return;
  for (const auto squeeze : {models::SqueezeExcitation::Off, models::SqueezeExcitation::On})
    for (const auto widening : {models::Widening::None, models::Widening::Widenet}) {
      if (widening == models::Widening::Widenet && base.task != Task::Cifar) continue;
      base.resnext.squeeze_excitation = squeeze;
      base.resnext.widening = widening;
      base.block = BlockKind::Bottleneck;
      all.push_back(base);
    }
}

std::vector<ModelOptions> candidates(const NamedTensors& tensors, WeightStyle style) {
  const std::optional<std::int64_t> classes = tensors.classes();
  std::vector<ModelOptions> all;
  for (const models::Family& family : models::families())
    for (const Task task : {Task::ImageNet, Task::Cifar})
      for (const std::string& size : family.sizes(task)) {
        ModelOptions base = default_options(family.name, task);
        base.size = size;
        base.classes = classes.value_or(base.classes);
        set_as_in(base, style);
        if (family.name == "resnet") {
          add_residual(all, base);
        } else if (family.name == "resnext") {
          add_resnext(all, base, tensors);
        } else {
          base.squeezenet.bias = true;
          all.push_back(base);
          base.squeezenet.bias = false;
          if (family.name == "squeezenet") all.push_back(std::move(base));
        }
      }
  return all;
}

/// Of names that libraries share: CIFAR's residual networks are akamaster's, others torchvision's.
bool is_unusual(const ModelOptions& options, WeightStyle style) {
  const bool residual_cifar = options.task == Task::Cifar && options.model.starts_with("res");
  return residual_cifar != (style == WeightStyle::Akamaster);
}

/// A network that is not in the file.
struct Near {
  std::size_t distance = std::numeric_limits<std::size_t>::max();
  bool unusual = true;
  std::string text = "none has the name and the shape of a tensor of theirs";
};

/// A search through all networks that can be built.
struct Search {
  std::optional<Identified> found;
  Near nearest;
};

Search search(const NamedTensors& tensors, std::span<const WeightStyle> styles) {
  Search result;
  std::optional<Identified> unusual;
  for (const WeightStyle style : styles)
    for (const ModelOptions& options : candidates(tensors, style)) {
      const std::optional<Graph> graph = models::try_to_build(options);
      if (!graph) continue;
      const Match match = io::match(tensors, *graph, style);
      const bool rare = is_unusual(options, style);
      if (match.fits()) {
        if (!rare || styles.size() == 1) {
          result.found = Identified{.style = style, .model = options};
          return result;
        }
        if (!unusual) unusual = Identified{.style = style, .model = options};
      } else if (match.found > 0 &&
                 std::pair(match.distance(), rare) <
                     std::pair(result.nearest.distance, result.nearest.unusual)) {
        result.nearest = {
            .distance = match.distance(),
            .unusual = rare,
            .text = fmt::format(
                "the closest network is {} {} of {}{}, but {}", article_of(graph->name),
                graph->name, name_of(style),
                tensors.classes() ? fmt::format(" with {} classes", *tensors.classes()) : "",
                difference_text(match))};
      }
    }
  result.found = std::move(unusual);
  return result;
}

}  // namespace

std::string to_string(const Identified& found) {
  const ModelOptions& model = found.model;
  return fmt::format("{} {}-{} for {} with {} classes, as in {}", article_of(model.model),
                     model.model, model.size, model.task == Task::Cifar ? "CIFAR" : "ImageNet",
                     model.classes, name_of(found.style));
}

void set_as_in(ModelOptions& options, WeightStyle style) {
  const bool keras = style == WeightStyle::Keras;
  // torchvision took its large EfficientNets from TensorFlow, timm trained its own.
  const bool from_tensorflow = keras || (style == WeightStyle::Torchvision && options.size >= "B5");
  options.norm = models::NormKind::Batch;
  options.padding = keras ? models::PaddingRule::Same : models::PaddingRule::Torch;
  options.norm_epsilon = keras ? 1.001e-5 : 1e-5;
  options.efficientnet.norm_epsilon = from_tensorflow ? 1e-3 : 1e-5;
  options.shortcut_pad = models::ShortcutPadSide::Both;
  if (keras && options.model == "resnet") {
    options.padding = models::PaddingRule::Torch;
    options.residual.version = models::ResNetVersion::V1;
  }
}

Identified identify(const TensorFile& file, std::span<const WeightStyle> styles) {
  const NamedTensors tensors(file);
  Search result = search(tensors, styles);
  if (result.found) {
    if (result.found->style == WeightStyle::Keras)
      result.found->input = keras_input(file, result.found->model);
    return *std::move(result.found);
  }
  if (styles.size() < kWeightStyles.size())
    if (const Search anyone = search(tensors, kWeightStyles); anyone.found)
      fail(ErrorKind::Data,
           "{}: no network of {} has these tensors: its names are those of {}: --like {}, or leave "
           "--like out",
           file.path().string(), name_of(styles.front()), name_of(anyone.found->style),
           name_of(anyone.found->style));
  const std::set<std::string>& dense = tensors.dense_layers();
  if (dense.size() > 1)
    fail(ErrorKind::Data,
         "{}: it has {} dense layers, {}, where the networks here have one: export it as ONNX and "
         "train it with --model FILE.onnx (docs/own-networks.md)",
         file.path().string(), dense.size(),
         join(std::vector<std::string>(dense.begin(), dense.end()), ", "));
  fail(ErrorKind::Data,
       "{}: no network that can be built has these tensors: {}; if the file holds another network, "
       "export it as ONNX and train it with --model FILE.onnx (docs/own-networks.md)",
       file.path().string(), result.nearest.text);
}

std::vector<ImportedParameter> import_weights(const TensorFile& file, const Graph& graph,
                                              WeightStyle style) {
  const NamedTensors tensors(file);
  const Match match = io::match(tensors, graph, style);
  if (!match.fits()) refuse(tensors, graph, match);
  std::vector<ImportedParameter> result;
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    const NamedTensors::Named& named = *tensors.find(match.names[i].name);
    std::vector<float> values = usable_floats(file, named.name, *named.tensor, parameter);
    values = from_foreign(graph, parameter, style, values);
    if (const auto bias = match.biases.find(parameter.name); bias != match.biases.end()) {
      const std::vector<float> moved = floats_of(file, bias->second->name, *bias->second->tensor);
      for (std::size_t c = 0; c < values.size(); ++c) values[c] -= moved[c];
    }
    result.push_back({parameter.name, std::move(values)});
  }
  return result;
}

std::vector<ImportedParameter> import_own_weights(const TensorFile& file, const Graph& graph) {
  std::vector<ImportedParameter> result;
  for (const Parameter& parameter : graph.parameters) {
    const auto found = file.tensors().find(parameter.name);
    if (found == file.tensors().end() || found->second.shape != parameter.shape)
      fail(ErrorKind::Data, "{}: {} is {}, but {} needs {}", file.path().string(), parameter.name,
           found == file.tensors().end() ? "missing" : shape_text(found->second.shape), graph.name,
           shape_text(parameter.shape));
    result.push_back(
        {parameter.name, usable_floats(file, parameter.name, found->second, parameter)});
  }
  return result;
}

WeightStyle find_style(const TensorFile& file, const Graph& graph) {
  const NamedTensors tensors(file);
  for (const WeightStyle style : kWeightStyles)
    if (match(tensors, graph, style).fits()) return style;
  return WeightStyle::Millrace;
}

}  // namespace millrace::io
