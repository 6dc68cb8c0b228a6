// SPDX-License-Identifier: Apache-2.0
#include "io/weights/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/tensor_checks.hpp"
#include "io/weights/keras_numbers.hpp"
#include "io/weights/libraries.hpp"
#include "models/registry.hpp"

namespace millrace::io {
namespace {

using models::BlockKind;
using models::Graph;
using models::ModelOptions;
using models::Op;
using models::Parameter;
using models::ParameterRole;
using models::Task;

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const std::size_t at = text.find(what);
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

/// One name for modules that repositories name differently.
std::string plain_name(std::string_view name) {
  for (const std::string_view wrapper : {"module.", "_orig_mod.", "model."})
    if (name.starts_with(wrapper)) name.remove_prefix(wrapper.size());
  std::string plain(name);
  if (plain.starts_with("linear.")) plain = replaced(plain, "linear.", "fc.");
  return replaced(plain, ".shortcut.", ".downsample.");
}

/// Tensors that are no parameters: counters, and the preprocessing within networks of Keras.
bool is_ignored(std::string_view name) {
  return name.ends_with("num_batches_tracked") || name.starts_with("normalization");
}

/// The tensors of a file by their plain names.
class Tensors {
 public:
  explicit Tensors(const TensorFile& file) : file_(file) {
    for (const auto& [name, tensor] : file.tensors())
      if (!is_ignored(name)) all_.emplace(plain_name(name), Named{name, &tensor});
  }

  struct Named {
    std::string name;  ///< in the file
    const SafeTensor* tensor = nullptr;
  };
  [[nodiscard]] const Named* find(const std::string& name) const {
    const auto found = all_.find(plain_name(name));
    return found == all_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] const std::map<std::string, Named>& all() const { return all_; }
  [[nodiscard]] const TensorFile& file() const { return file_; }

 private:
  const TensorFile& file_;
  std::map<std::string, Named> all_;
};

/// The parameters under the names that the library gives them in this file.
ForeignParameters names_in(const TensorFile& file, const Graph& graph, WeightStyle style) {
  ForeignParameters names = foreign_parameters(graph, style);
  if (style == WeightStyle::Keras && names.misfit.empty() && has_numbers(file))
    replace_by_numbers(names);
  return names;
}

/// The batch normalization that alone reads what a convolution makes; none if there is no such.
const Op* norm_behind(const Graph& graph, const Op& op) {
  const std::vector<models::OpId> readers = graph.consumers(op.output);
  if (readers.size() != 1) return nullptr;
  const Op& reader = graph.op(readers.front());
  return std::holds_alternative<models::BatchNorm>(reader.kind) ? &reader : nullptr;
}

/// A network against a file.
struct Match {
  std::size_t found = 0;                 ///< parameters with their tensors
  std::string misfit = {};               ///< the first that does not fit, or empty
  std::vector<std::string> unused = {};  ///< plain names of tensors that no parameter uses
  /// By parameter of a running mean: the bias that the library adds before it.
  std::map<std::string, const Tensors::Named*> biases = {};
};

class Matcher {
 public:
  Matcher(const Tensors& tensors, const Graph& graph, WeightStyle style)
      : tensors_(tensors), graph_(graph), style_(style) {}

  Match match() {
    const ForeignParameters names = names_in(tensors_.file(), graph_, style_);
    if (!names.misfit.empty()) return {.misfit = names.misfit};
    for (std::size_t i = 0; i < names.all.size(); ++i) add(graph_.parameters[i], names.all[i]);
    if (style_ == WeightStyle::Keras) find_biases(names);
    for (const auto& [name, named] : tensors_.all())
      if (!used_.contains(name)) match_.unused.push_back(name);
    return std::move(match_);
  }

 private:
  void add(const Parameter& parameter, const ForeignParameter& foreign) {
    const Tensors::Named* named = tensors_.find(foreign.name);
    if (named == nullptr) {
      miss(fmt::format("no tensor {} (shape {}) for {} of {}", foreign.name,
                       shape_text(foreign.shape), parameter.name, graph_.name));
    } else if (named->tensor->shape != foreign.shape) {
      miss(fmt::format("{} has shape {}, but {} of {} needs {}", named->name,
                       shape_text(named->tensor->shape), parameter.name, graph_.name,
                       shape_text(foreign.shape)));
      used_.insert(plain_name(foreign.name));
    } else {
      ++match_.found;
      used_.insert(plain_name(foreign.name));
    }
  }
  void miss(std::string text) {
    if (match_.misfit.empty()) match_.misfit = std::move(text);
  }

  /// Keras gives convolutions before a normalization a bias, which only moves the mean.
  void find_biases(const ForeignParameters& names) {
    for (std::size_t i = 0; i < names.all.size(); ++i) {
      const Op& op = graph_.op(graph_.parameters[i].op);
      const auto* conv = std::get_if<models::Conv>(&op.kind);
      const Op* norm = conv != nullptr && !conv->bias ? norm_behind(graph_, op) : nullptr;
      if (norm == nullptr) continue;
      const std::string bias = bias_beside(names.all[i].name);
      const Tensors::Named* named = tensors_.find(bias);
      if (named == nullptr || named->tensor->shape != std::vector{conv->out_channels}) continue;
      used_.insert(bias);
      for (const models::ParameterId id : norm->parameters)
        if (graph_.parameter(id).role == ParameterRole::MovingMean)
          match_.biases[graph_.parameter(id).name] = named;
    }
  }

  const Tensors& tensors_;
  const Graph& graph_;
  WeightStyle style_;
  Match match_;
  std::set<std::string> used_;
};

/// "; did you mean layer1.0.conv1.weight?", or nothing.
std::string nearest_unused(const Match& match) {
  const std::size_t begin = match.misfit.find("no tensor ");
  if (begin != 0 || match.unused.empty()) return {};
  const std::vector<std::string> words = split_list(match.misfit, ' ');
  const std::string nearest = nearest_match(words.at(2), match.unused);
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

[[noreturn]] void refuse(const Tensors& tensors, const Graph& graph, const Match& match) {
  const std::string path = tensors.file().path().string();
  const std::string held = held_by(tensors.file());
  if (!match.misfit.empty())
    fail(ErrorKind::Data, "{}: {}{}{}", path, match.misfit, nearest_unused(match), held);
  const Tensors::Named& first = *tensors.find(match.unused.front());
  fail(ErrorKind::Data, "{}: {} {} is not part of {} ({} of {} tensors are){}", path, first.name,
       shape_text(first.tensor->shape), graph.name, tensors.all().size() - match.unused.size(),
       tensors.all().size(), held);
}

std::vector<float> floats_of(const Tensors& tensors, const Tensors::Named& named) {
  try {
    return named.tensor->to_floats();
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}: {}", tensors.file().path().string(), named.name, error.what());
  }
}

// ---- all networks that can be built

/// The outputs of a network, by the rows of its last layer.
std::optional<std::int64_t> classes_of(const Tensors& tensors) {
  for (const char* name : {"fc.weight", "classifier.1.weight", "classifier.weight",
                           "predictions/bias:0", "dense/vars/1"})
    if (const Tensors::Named* named = tensors.find(name);
        named != nullptr && !named->tensor->shape.empty())
      return named->tensor->shape[0];
  return std::nullopt;
}

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
void add_resnext(std::vector<ModelOptions>& all, ModelOptions base, const Tensors& tensors) {
  const Tensors::Named* conv = tensors.find("layer1.0.conv2.weight");
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

std::vector<ModelOptions> candidates(const Tensors& tensors, WeightStyle style,
                                     std::int64_t classes) {
  std::vector<ModelOptions> all;
  for (const std::string_view model : models::model_names())
    for (const Task task : {Task::ImageNet, Task::Cifar})
      for (const std::string& size : models::model_sizes(model, task)) {
        ModelOptions base = default_options(model, task);
        base.size = size;
        base.classes = classes;
        set_as_in(base, style);
        if (model == "resnet") {
          add_residual(all, base);
        } else if (model == "resnext") {
          add_resnext(all, base, tensors);
        } else {
          base.squeezenet.bias = true;
          all.push_back(base);
          base.squeezenet.bias = false;
          if (model == "squeezenet") all.push_back(std::move(base));
        }
      }
  return all;
}

/// Of names that libraries share: CIFAR's residual networks are akamaster's, others torchvision's.
bool is_unusual(const ModelOptions& options, WeightStyle style) {
  const bool residual_cifar = options.task == Task::Cifar && options.model.starts_with("res");
  return residual_cifar != (style == WeightStyle::Akamaster);
}

/// A search through all networks that can be built.
struct Search {
  std::optional<Identified> found;
  std::string nearest = "it has no last layer that any of them has";
};

Search search(const TensorFile& file, std::span<const WeightStyle> styles) {
  const Tensors tensors(file);
  Search result;
  const std::optional<std::int64_t> classes = classes_of(tensors);
  std::optional<Identified> unusual;
  std::size_t most = 0;
  for (const WeightStyle style : styles)
    for (const ModelOptions& options : candidates(tensors, style, classes.value_or(1000))) {
      const std::optional<Graph> graph = models::try_to_build(options);
      if (!graph) continue;
      const Match match = Matcher(tensors, *graph, style).match();
      if (match.misfit.empty() && match.unused.empty()) {
        if (!is_unusual(options, style) || styles.size() == 1) {
          result.found = Identified{style, options};
          return result;
        }
        if (!unusual) unusual = Identified{style, options};
      } else if (match.found > most) {
        most = match.found;
        result.nearest =
            fmt::format("the nearest is {} {} of {}, but {}", article_of(graph->name), graph->name,
                        name_of(style),
                        match.misfit.empty() ? "it has no " + match.unused.front() : match.misfit);
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

Identified identify(const TensorFile& file, std::span<const WeightStyle> styles) {
  Search result = search(file, styles);
  if (result.found) return *std::move(result.found);
  if (styles.size() < kWeightStyles.size())
    if (const Search anyone = search(file, kWeightStyles); anyone.found)
      fail(ErrorKind::Data,
           "{}: no network of {} has these tensors: its names are those of {}: --like {}, or leave "
           "--like out",
           file.path().string(), name_of(styles.front()), name_of(anyone.found->style),
           name_of(anyone.found->style));
  fail(ErrorKind::Data,
       "{}: no network that can be built has these tensors: {}; if the file holds another network, "
       "export it as ONNX and train it with --model FILE.onnx (docs/own-networks.md)",
       file.path().string(), result.nearest);
}

std::vector<ImportedParameter> import_weights(const TensorFile& file, const Graph& graph,
                                              WeightStyle style) {
  const Tensors tensors(file);
  const Match match = Matcher(tensors, graph, style).match();
  if (!match.misfit.empty() || !match.unused.empty()) refuse(tensors, graph, match);
  const ForeignParameters names = names_in(file, graph, style);
  std::vector<ImportedParameter> result;
  for (std::size_t i = 0; i < names.all.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    const Tensors::Named& named = *tensors.find(names.all[i].name);
    std::vector<float> values = floats_of(tensors, named);
    if (const std::string bad = bad_value(values, names.all[i].shape, value_rule(parameter.name));
        !bad.empty())
      fail(ErrorKind::Data, "{}: {}{}: the network cannot use this value: fetch the weights again",
           file.path().string(), named.name, bad);
    values = from_foreign(graph, parameter, style, values);
    if (const auto bias = match.biases.find(parameter.name); bias != match.biases.end()) {
      const std::vector<float> moved = floats_of(tensors, *bias->second);
      for (std::size_t c = 0; c < values.size(); ++c) values[c] -= moved[c];
    }
    result.push_back({parameter.name, std::move(values)});
  }
  return result;
}

}  // namespace millrace::io
