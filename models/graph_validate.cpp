// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "models/graph.hpp"

namespace millrace::models {
namespace {

/// One method per invariant of models/graph.hpp. Each relies on those before it in `run`, so that
/// an index is checked before it is used.
class Validator {
 public:
  explicit Validator(const Graph& graph) : graph_(graph) {}

  void run() const {
    check_input();
    check_layers();
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      check_place(i);
      check_values(i);
      check_shapes(i);
      check_parameters(i);
    }
    check_every_value();
    check_every_parameter();
    check_names();
  }

 private:
  template <class... Args>
  [[noreturn]] void broken(std::string_view where, fmt::format_string<Args...> why,
                           Args&&... args) const {
    fail(ErrorKind::Internal, "graph {}: {}: {}", graph_.name, where,
         fmt::format(why, std::forward<Args>(args)...));
  }

  template <class Tag, class List>
  static bool in_range(Index<Tag> id, const List& list) {
    return id.valid() && id.at() < list.size();
  }

  void check_input() const {
    const Shape& shape = graph_.input_shape;
    if (std::min({shape.h, shape.w, shape.c}) < 1) broken("input", "shape {} is empty", shape);
    if (graph_.classes < 1) broken("classes", "{} is less than 1", graph_.classes);
    if (graph_.values.empty()) broken("input", "has no value");
    const Value& input = graph_.values.front();
    if (input.producer.valid()) broken("input", "is made by op number {}", input.producer.value);
    if (input.shape != shape)
      broken("input", "its value has shape {}, expected {}", input.shape, shape);
  }

  void check_layers() const {
    if (graph_.ops.empty()) broken("ops", "the list is empty");
    if (graph_.layers.empty()) broken("layers", "the list is empty");
    std::int32_t next = 0;  // smallest valid first op of the layer
    for (const Layer& layer : graph_.layers) {
      const OpId first = layer.first_op;
      if (!in_range(first, graph_.ops) || first.value < next || (next == 0 && first.value != 0)) {
        broken("layer " + layer.name, "cannot begin at op number {} of {}", first.value,
               graph_.ops.size());
      }
      next = first.value + 1;
    }
  }

  /// The op lies in its layer, and its name begins with the layer's name.
  void check_place(std::size_t i) const {
    const Op& op = graph_.ops[i];
    if (!in_range(op.layer, graph_.layers)) {
      broken("op " + op.name, "layer number {} does not exist", op.layer.value);
    }
    const Layer& layer = graph_.layers[op.layer.at()];
    const std::size_t next = op.layer.at() + 1;
    const std::size_t end =
        next < graph_.layers.size() ? graph_.layers[next].first_op.at() : graph_.ops.size();
    if (i < layer.first_op.at() || i >= end) {
      broken("op " + op.name, "has number {}, but layer {} holds ops {} to {}", i, layer.name,
             layer.first_op.value, end - 1);
    }
    const bool below = op.name.size() > layer.name.size() + 1 && op.name.starts_with(layer.name) &&
                       op.name[layer.name.size()] == '/';
    if (op.name != layer.name && !below) {
      broken("op " + op.name, "name does not begin with its layer's name {}", layer.name);
    }
    if (op.name == layer.name && i != layer.first_op.at()) {
      broken("op " + op.name, "has its layer's name but is not its first op");
    }
  }

  void check_values(std::size_t i) const {
    const Op& op = graph_.ops[i];
    for (const ValueId input : op.inputs) {
      if (!in_range(input, graph_.values)) {
        broken("op " + op.name, "reads value {} of {}", input.value, graph_.values.size());
      }
      const OpId producer = graph_.value(input).producer;
      if (producer.valid() && producer.at() >= i) {
        broken("op " + op.name, "reads value {}, which no earlier op makes", input.value);
      }
    }
    const bool last = i + 1 == graph_.ops.size();
    const bool loss = std::holds_alternative<SoftmaxLoss>(op.kind);
    if (loss && !last) broken("op " + op.name, "is a loss but not the last op");
    if (last && !loss) broken("op " + op.name, "is the last op but not a loss");
    if (last && op.output.valid()) broken("op " + op.name, "is the loss but has an output");
    if (!last && !in_range(op.output, graph_.values)) {
      broken("op " + op.name, "makes value {} of {}", op.output.value, graph_.values.size());
    }
  }

  void check_shapes(std::size_t i) const {
    const Op& op = graph_.ops[i];
    const Inference inference = infer(graph_, op);
    if (!inference.misfit.empty()) broken("op " + op.name, "{}", inference.misfit);
    if (op.output.valid() && graph_.value(op.output).shape != inference.output) {
      broken("op " + op.name, "makes {}, but its value has shape {}", inference.output,
             graph_.value(op.output).shape);
    }
  }

  void check_parameters(std::size_t i) const {
    const Op& op = graph_.ops[i];
    const std::vector<ParameterSpec> specs = infer(graph_, op).parameters;
    if (specs.size() != op.parameters.size()) {
      broken("op " + op.name, "has {} parameters, expected {}", op.parameters.size(), specs.size());
    }
    for (std::size_t j = 0; j < specs.size(); ++j) {
      const ParameterId id = op.parameters[j];
      if (!in_range(id, graph_.parameters)) {
        broken("op " + op.name, "owns parameter {} of {}", id.value, graph_.parameters.size());
      }
      const Parameter& parameter = graph_.parameter(id);
      if (parameter.op.value != static_cast<std::int32_t>(i)) {
        broken("parameter " + parameter.name, "is owned by op {} but refers to another", op.name);
      }
      const std::string name = fmt::format("{}/{}", op.name, role_name(specs[j].role));
      if (parameter.name != name) broken("parameter " + parameter.name, "must be named {}", name);
      if (parameter.role != specs[j].role || parameter.shape != specs[j].shape ||
          parameter.init != specs[j].init) {
        broken("parameter " + parameter.name, "role, shape or initializer does not match {}",
               describe(op.kind));
      }
    }
  }

  void check_every_value() const {
    std::vector<bool> read(graph_.values.size());
    for (const Op& op : graph_.ops) {
      for (const ValueId input : op.inputs) read[input.at()] = true;
    }
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const OpId producer = graph_.values[i].producer;
      if (i != 0 && (!in_range(producer, graph_.ops) ||
                     graph_.op(producer).output.value != static_cast<std::int32_t>(i))) {
        broken(fmt::format("value {}", i), "op number {} does not make it", producer.value);
      }
      if (!read[i]) {
        broken(fmt::format("value {}", i), "{} and no op reads it",
               i == 0 ? "is the input" : "is the output of " + graph_.op(producer).name);
      }
    }
  }

  /// Every op owns exactly what it needs, so a parameter that is left over belongs to no op.
  void check_every_parameter() const {
    std::vector<bool> owned(graph_.parameters.size());
    for (const Op& op : graph_.ops) {
      for (const ParameterId id : op.parameters) owned[id.at()] = true;
    }
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (!owned[i]) broken("parameter " + graph_.parameters[i].name, "no op owns it");
    }
  }

  void check_names() const {
    std::unordered_set<std::string_view> layers;
    for (const Layer& layer : graph_.layers) {
      if (layer.name.empty()) broken("layers", "a layer has no name");
      if (!layers.insert(layer.name).second) broken("layer " + layer.name, "name is used twice");
    }
    std::unordered_set<std::string_view> ops;
    for (const Op& op : graph_.ops) {
      if (!ops.insert(op.name).second) broken("op " + op.name, "name is used twice");
      if (layers.count(op.name) != 0 && graph_.layers[op.layer.at()].name != op.name) {
        broken("op " + op.name, "has the name of another layer");
      }
    }
  }

  const Graph& graph_;
};

}  // namespace

void validate(const Graph& graph) { Validator(graph).run(); }

}  // namespace millrace::models
