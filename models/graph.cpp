// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "core/text.hpp"

namespace millrace::models {
namespace {

OpId op_id(std::size_t index) { return OpId{static_cast<std::int32_t>(index)}; }

void require_match(const Graph& graph, const std::string& filter) {
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.trainable()) continue;
    if (contains_any(parameter.name, {&filter, 1})) return;
    names.push_back(parameter.name);
  }
  constexpr std::size_t kShown = 5;
  fail(ErrorKind::Config,
       "`variable-filter`: no trainable parameter of {} has '{}' in its name; the nearest are {}",
       graph.name, filter, join(nearest_containing(filter, names, kShown), ", "));
}

}  // namespace

std::int64_t Parameter::elements() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

OpId Graph::find(std::string_view layer_or_op) const {
  for (const Layer& layer : layers) {
    if (layer.name == layer_or_op) return layer.first_op;
  }
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].name == layer_or_op) return op_id(i);
  }
  return {};
}

std::vector<OpId> Graph::consumers(ValueId value) const {
  std::vector<OpId> readers;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::vector<ValueId>& inputs = ops[i].inputs;
    if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) readers.push_back(op_id(i));
  }
  return readers;
}

std::int64_t Graph::trainable_elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.trainable() && !p.fixed ? p.elements() : 0;
  return sum;
}

std::int64_t Graph::forward_macs() const {
  std::int64_t sum = 0;
  for (const Op& op : ops) sum += infer(*this, op).macs;
  return sum;
}

Inference infer(const Graph& graph, const Op& op) {
  std::vector<Shape> shapes;
  for (const ValueId input : op.inputs) shapes.push_back(graph.value(input).shape);
  return infer(op.kind, shapes, graph.classes);
}

void train_only(Graph& graph, std::span<const std::string> filters) {
  for (const std::string& filter : filters) require_match(graph, filter);
  for (Parameter& parameter : graph.parameters)
    parameter.frozen =
        parameter.trainable() &&
        (parameter.fixed || (!filters.empty() && !contains_any(parameter.name, filters)));
}

bool learns(const Graph& graph, OpId op) {
  const std::vector<ParameterId>& ids = graph.op(op).parameters;
  return std::any_of(ids.begin(), ids.end(),
                     [&](ParameterId id) { return graph.parameter(id).learns(); });
}

std::vector<bool> wanted_gradients(const Graph& graph) {
  std::vector<bool> wanted(graph.values.size(), false);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (!op.output.valid()) continue;
    wanted[op.output.at()] = learns(graph, OpId{static_cast<std::int32_t>(i)}) ||
                             std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId input) {
                               return static_cast<bool>(wanted[input.at()]);
                             });
  }
  return wanted;
}

}  // namespace millrace::models
