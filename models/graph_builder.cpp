// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "models/graph.hpp"

namespace millrace::models {
namespace {

// Sizes are computed as double: a product above the limits may not fit in 64 bits.

void check_size(const std::string& graph, const std::string& op, const Shape& output) {
  if (output.c > kMostChannels) {
    fail(ErrorKind::Config, "{}: {}: {} channels exceed the limit of {} per value", graph, op,
         output.c, kMostChannels);
  }
  const double elements =
      static_cast<double>(output.h) * static_cast<double>(output.w) * static_cast<double>(output.c);
  if (elements > static_cast<double>(kMostElements)) {
    fail(ErrorKind::Config,
         "{}: {}: {:.3g} elements ({}) exceed the limit of {} per image; use fewer channels or "
         "smaller images",
         graph, op, elements, output, kMostElements);
  }
}

void check_parameters(const std::string& graph, std::string_view what, double elements) {
  if (elements > static_cast<double>(kMostParameters)) {
    fail(ErrorKind::Config,
         "{}: {} {:.3g} parameters, above the limit of {} per network; use fewer channels", graph,
         what, elements, kMostParameters);
  }
}

double elements_of(const std::vector<std::int64_t>& shape) {
  double elements = 1.0;
  for (const std::int64_t extent : shape) elements *= static_cast<double>(extent);
  return elements;
}

[[noreturn]] void broken(const Graph& graph, std::string_view where, std::string_view why) {
  fail(ErrorKind::Config, "graph {}: {}: {}", graph.name, where, why);
}

void check_layers(const Graph& graph) {
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const auto& [name, first] = graph.layers[i];
    const std::size_t end =
        i + 1 < graph.layers.size() ? graph.layers[i + 1].first_op.at() : graph.ops.size();
    if (name.empty()) broken(graph, "layers", "a layer has no name");
    if (!names.insert(name).second) broken(graph, "layer " + name, "name is used twice");
    if (first.at() >= end) broken(graph, "layer " + name, "has no ops");
  }
}

void check_ops(const Graph& graph) {
  std::unordered_set<std::string_view> layers;
  for (const Layer& layer : graph.layers) layers.insert(layer.name);
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    const Layer& layer = graph.layers[op.layer.at()];
    const std::string where = "op " + op.name;
    if (!names.insert(op.name).second) broken(graph, where, "name is used twice");
    if (op.name == layer.name && i != layer.first_op.at())
      broken(graph, where, "has its layer's name but is not its first op");
    if (op.name != layer.name && layers.contains(op.name))
      broken(graph, where, "has the name of another layer");
    const bool loss = std::holds_alternative<SoftmaxLoss>(op.kind);
    const bool last = i + 1 == graph.ops.size();
    if (loss && !last) broken(graph, where, "is a loss but not the last op");
    if (last && !loss) broken(graph, where, "is the last op but not a loss");
  }
}

void check_values(const Graph& graph) {
  std::vector<bool> read(graph.values.size());
  for (const Op& op : graph.ops)
    for (const ValueId input : op.inputs) read[input.at()] = true;
  for (const Op& op : graph.ops)
    if (op.output.valid() && !read[op.output.at()])
      broken(graph, "op " + op.name, "no op reads its output");
}

}  // namespace

GraphBuilder::GraphBuilder(std::string name, Shape input_shape, std::int64_t classes) {
  graph_.name = std::move(name);
  graph_.input_shape = input_shape;
  graph_.classes = classes;
  graph_.values.push_back({.shape = input_shape, .producer = {}});
  if (input_shape.h < 1 || input_shape.w < 1 || input_shape.c < 1) {
    fail(ErrorKind::Config, "{}: image size {} is empty; every extent must be at least 1",
         graph_.name, input_shape);
  }
  if (classes < 1) {
    fail(ErrorKind::Config, "{}: {} classes; at least 1 is required", graph_.name, classes);
  }
  check_size(graph_.name, "images", input_shape);
  check_size(graph_.name, "classes", {1, 1, classes});
}

void GraphBuilder::begin_layer(std::string name) {
  const OpId first{static_cast<std::int32_t>(graph_.ops.size())};
  graph_.layers.push_back({.name = std::move(name), .first_op = first});
}

ValueId GraphBuilder::op(std::string_view name, const OpKind& kind, std::vector<ValueId> inputs) {
  if (graph_.layers.empty())
    broken(graph_, fmt::format("op {}", name), "belongs to no layer: call begin_layer() first");
  const std::string& layer = graph_.layers.back().name;
  Op op;
  op.name = name.empty() ? layer : fmt::format("{}/{}", layer, name);
  op.layer = LayerId{static_cast<std::int32_t>(graph_.layers.size() - 1)};

  std::vector<Shape> shapes;
  for (const ValueId input : inputs) {
    if (!input.valid() || input.at() >= graph_.values.size())
      broken(graph_, "op " + op.name, "reads what is no output of this builder's ops");
    shapes.push_back(shape(input));
  }
  Inference inference = infer(kind, shapes, graph_.classes);
  if (!inference.misfit.empty()) {
    fail(ErrorKind::Config, "{}: {}: {}", graph_.name, op.name, inference.misfit);
  }
  check_size(graph_.name, op.name, inference.output);
  if (std::ssize(graph_.ops) >= kMostOps) {
    fail(ErrorKind::Config, "{}: {}: exceeds the limit of {} ops per network", graph_.name, op.name,
         kMostOps);
  }

  const OpId id{static_cast<std::int32_t>(graph_.ops.size())};
  for (ParameterSpec& spec : inference.parameters) {
    check_parameters(graph_.name, op.name + " has", elements_of(spec.shape));
    op.parameters.push_back(ParameterId{static_cast<std::int32_t>(graph_.parameters.size())});
    graph_.parameters.push_back({.name = fmt::format("{}/{}", op.name, role_name(spec.role)),
                                 .shape = std::move(spec.shape),
                                 .role = spec.role,
                                 .init = spec.init,
                                 .op = id,
                                 .fixed = spec.fixed,
                                 .frozen = spec.fixed});
  }
  if (!std::holds_alternative<SoftmaxLoss>(kind)) {
    op.output = ValueId{static_cast<std::int32_t>(graph_.values.size())};
    graph_.values.push_back({.shape = inference.output, .producer = id});
  }
  op.kind = kind;
  op.inputs = std::move(inputs);
  graph_.ops.push_back(std::move(op));
  return graph_.ops.back().output;
}

Graph GraphBuilder::build() && {
  double parameters = 0.0;
  for (const Parameter& parameter : graph_.parameters) parameters += elements_of(parameter.shape);
  check_parameters(graph_.name, "has", parameters);
  check_layers(graph_);
  check_ops(graph_);
  check_values(graph_);
  return std::move(graph_);
}

ValueId squeeze_excite(GraphBuilder& builder, std::string_view name, ValueId x,
                       const SqueezeExcite& squeeze) {
  const auto below = [name](std::string_view op) {
    return name.empty() ? std::string(op) : fmt::format("{}/{}", name, op);
  };
  ValueId s = builder.global_average_pool(name, x);
  s = builder.conv(below("reduce"), s,
                   {.out_channels = squeeze.squeezed, .bias = true, .init = squeeze.init});
  s = builder.activation(below("act"), s, {squeeze.activation});
  s = builder.conv(below("expand"), s,
                   {.out_channels = builder.shape(x).c, .bias = true, .init = squeeze.init});
  s = builder.activation(below("sigmoid"), s, {Activation::Sigmoid});
  return builder.scale_channels(below("scale"), x, s);
}

}  // namespace millrace::models
