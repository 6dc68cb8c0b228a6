// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/match.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/tensor_checks.hpp"
#include "tools/weights/keras.hpp"

namespace millrace::io {
namespace {

using models::Graph;
using models::Op;
using models::Parameter;

constexpr std::string_view kKerasKernel = "/kernel:0";
constexpr std::string_view kKerasHead = "predictions";

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const std::size_t at = text.find(what);
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

/// One name for modules that repositories name differently.
std::string plain_name(std::string_view name) {
  constexpr auto kWrappers = std::to_array<std::string_view>({"module.", "_orig_mod.", "model."});
  const auto wraps = [&](std::string_view wrapper) { return name.starts_with(wrapper); };
  for (const auto* found = std::ranges::find_if(kWrappers, wraps); found != kWrappers.end();
       found = std::ranges::find_if(kWrappers, wraps))
    name.remove_prefix(found->size());
  std::string plain(name);
  if (plain.starts_with("linear.")) plain = replaced(plain, "linear.", "fc.");
  return replaced(plain, ".shortcut.", ".downsample.");
}

/// Tensors that are no parameters: counters, and the preprocessing within networks of Keras.
bool is_ignored(std::string_view name) {
  return name.ends_with("num_batches_tracked") || name.starts_with("normalization");
}

/// "fc.bias, fc.weight and 3 more"
std::string listed(std::span<const std::string> all) {
  constexpr std::size_t kMost = 4;
  const std::size_t shown = std::min(all.size(), kMost);
  const std::string text = join(all.first(shown), ", ");
  return shown == all.size() ? text : fmt::format("{} and {} more", text, all.size() - shown);
}

/// The batch normalization that alone reads what a convolution makes; none if there is no such.
const Op* norm_behind(const Graph& graph, const Op& op) {
  const std::vector<models::OpId> readers = graph.consumers(op.output);
  if (readers.size() != 1) return nullptr;
  const Op& reader = graph.op(readers.front());
  return std::holds_alternative<models::BatchNorm>(reader.kind) ? &reader : nullptr;
}

class Matcher {
 public:
  Matcher(const NamedTensors& tensors, const Graph& graph, WeightStyle style)
      : tensors_(tensors), graph_(graph), style_(style) {}

  Match match() {
    ForeignParameters names = foreign_parameters(graph_, style_);
    if (!names.misfit.empty()) return {.misfit = names.misfit};
    const bool keras = style_ == WeightStyle::Keras;
    if (keras && has_numbers(tensors_.file())) replace_by_numbers(names);
    match_.names = std::move(names.all);
    for (std::size_t i = 0; i < match_.names.size(); ++i)
      add(graph_.parameters[i], match_.names[i]);
    if (keras) find_biases();
    for (const auto& [name, named] : tensors_.all())
      if (!used_.contains(&named)) match_.unused.push_back(&named);
    return std::move(match_);
  }

 private:
  void add(const Parameter& parameter, const ForeignParameter& foreign) {
    const NamedTensors::Named* named = tensors_.find(foreign.name);
    if (named == nullptr) {
      miss(fmt::format("no tensor {} (shape {}) for {} of {}", foreign.name,
                       shape_text(foreign.shape), parameter.name, graph_.name));
      match_.missing.push_back(foreign.name);
      return;
    }
    used_.insert(named);
    if (named->tensor->shape == foreign.shape) {
      ++match_.found;
      return;
    }
    match_.reshaped.push_back(fmt::format("{} has shape {}, but {} of {} needs {}", named->name,
                                          shape_text(named->tensor->shape), parameter.name,
                                          graph_.name, shape_text(foreign.shape)));
    miss(match_.reshaped.back());
  }
  void miss(std::string text) {
    if (match_.misfit.empty()) match_.misfit = std::move(text);
  }

  /// Keras gives convolutions before a normalization a bias, which only moves the mean.
  void find_biases() {
    for (std::size_t i = 0; i < match_.names.size(); ++i) {
      const Op& op = graph_.op(graph_.parameters[i].op);
      const auto* conv = std::get_if<models::Conv>(&op.kind);
      const Op* norm = conv != nullptr && !conv->bias ? norm_behind(graph_, op) : nullptr;
      if (norm == nullptr) continue;
      const NamedTensors::Named* named = tensors_.find(bias_beside(match_.names[i].name));
      if (named == nullptr || named->tensor->shape != std::vector{conv->out_channels}) continue;
      used_.insert(named);
      for (const models::ParameterId id : norm->parameters)
        if (graph_.parameter(id).role == models::ParameterRole::MovingMean)
          match_.biases[graph_.parameter(id).name] = named;
    }
  }

  const NamedTensors& tensors_;
  const Graph& graph_;
  WeightStyle style_;
  Match match_;
  std::set<const NamedTensors::Named*> used_;
};

}  // namespace

NamedTensors::NamedTensors(const TensorFile& file) : file_(file) {
  for (const auto& [name, tensor] : file.tensors())
    if (name.ends_with(kKerasKernel) && tensor.shape.size() == 2)
      dense_.insert(name.substr(0, name.size() - kKerasKernel.size()));
  for (const auto& [name, tensor] : file.tensors()) {
    if (is_ignored(name)) continue;
    std::string plain = plain_name(name);
    if (dense_.size() == 1 && plain.starts_with(*dense_.begin() + '/'))
      plain.replace(0, dense_.begin()->size(), kKerasHead);
    const auto [at, added] = all_.emplace(plain, Named{name, &tensor});
    if (!added)
      fail(ErrorKind::Data, "{}: both {} and {} are {} of a network: save one network alone",
           file.path().string(), at->second.name, name, plain);
  }
}

const NamedTensors::Named* NamedTensors::find(const std::string& name) const {
  const auto found = all_.find(plain_name(name));
  return found == all_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> NamedTensors::classes() const {
  for (const char* name : {"fc.weight", "classifier.1.weight", "classifier.weight",
                           "predictions/bias:0", "dense/vars/1"})
    if (const Named* named = find(name); named != nullptr && !named->tensor->shape.empty())
      return named->tensor->shape[0];
  // A last layer of another name is the only matrix.
  std::optional<std::int64_t> rows;
  for (const auto& [name, named] : all_) {
    if (named.tensor->shape.size() != 2) continue;
    if (rows) return std::nullopt;
    rows = named.tensor->shape[name.ends_with(kKerasKernel) ? 1 : 0];
  }
  return rows;
}

Match match(const NamedTensors& tensors, const Graph& graph, WeightStyle style) {
  return Matcher(tensors, graph, style).match();
}

std::string difference_text(const Match& match) {
  std::vector<std::string> parts;
  if (!match.missing.empty()) parts.push_back("lacks " + listed(match.missing));
  if (!match.unused.empty()) {
    std::vector<std::string> names;
    for (const NamedTensors::Named* named : match.unused)
      names.push_back(fmt::format("{} {}", named->name, shape_text(named->tensor->shape)));
    parts.push_back(fmt::format("also has {}", listed(names)));
  }
  std::string text = parts.empty() ? "" : "the file " + join(parts, " and ");
  if (match.reshaped.empty()) return text;
  const std::size_t others = match.reshaped.size() - 1;
  return fmt::format("{}{}{}{}", text, text.empty() ? "" : "; ", match.reshaped.front(),
                     others == 0 ? "" : fmt::format(", and {} more differ", others));
}

}  // namespace millrace::io
