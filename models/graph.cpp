// SPDX-License-Identifier: Apache-2.0
#include "models/graph.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/text.hpp"

namespace millrace::models {
namespace {

OpId op_id(std::size_t index) { return OpId{static_cast<std::int32_t>(index)}; }

/// Elements of the op's trainable parameters, or of its running statistics.
enum class Counted { Trainable, State };
std::int64_t elements_of(const Graph& graph, const Op& op, Counted counted) {
  std::int64_t sum = 0;
  for (const ParameterId id : op.parameters) {
    const Parameter& parameter = graph.parameter(id);
    if (parameter.trainable() == (counted == Counted::Trainable)) sum += parameter.elements();
  }
  return sum;
}

using Row = std::array<std::string, 7>;

std::string number_or_blank(std::int64_t number) {
  return number == 0 ? std::string() : with_commas(number);
}

Row table_row(const Graph& graph, const Op& op) {
  std::string inputs;
  for (const ValueId input : op.inputs) {
    inputs += fmt::format("{}{}", inputs.empty() ? "" : ", ", graph.value(input).shape);
  }
  return {op.name,
          describe(op.kind),
          inputs,
          op.output.valid() ? fmt::format("{}", graph.value(op.output).shape) : std::string(),
          number_or_blank(elements_of(graph, op, Counted::Trainable)),
          number_or_blank(elements_of(graph, op, Counted::State)),
          number_or_blank(infer(graph, op).macs)};
}

Row totals_row(const Graph& graph) {
  std::int64_t state = 0;
  for (const Op& op : graph.ops) state += elements_of(graph, op, Counted::State);
  return {"total",
          fmt::format("{} ops, {} layers", graph.ops.size(), graph.layers.size()),
          "",
          "",
          with_commas(graph.trainable_elements()),
          with_commas(state),
          with_commas(graph.forward_macs())};
}

/// Columns are as wide as their widest entry; the first four are aligned left, the numbers right.
std::string render(const std::vector<Row>& rows) {
  std::array<std::size_t, std::tuple_size_v<Row>> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      line += (i < 4 ? row[i] + blanks : blanks + row[i]) + "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
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
  for (const Parameter& p : parameters) sum += p.trainable() ? p.elements() : 0;
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

std::string to_string(const Graph& graph) {
  std::vector<Row> rows = {{"op", "kind", "input", "output", "parameters", "state", "MACs"}};
  for (const Op& op : graph.ops) rows.push_back(table_row(graph, op));
  rows.push_back(totals_row(graph));
  return fmt::format("{}: {} input, {} classes\n{}", graph.name, graph.input_shape, graph.classes,
                     render(rows));
}

}  // namespace millrace::models
