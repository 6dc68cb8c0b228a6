// SPDX-License-Identifier: Apache-2.0
//
// Queries of a graph for the tests of the model families.
#pragma once

#include <fmt/format.h>

#include "models/graph.hpp"
#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/test.hpp"

namespace millrace::models {

/// A network of a family, of the size and with the number of classes of its recipes, if these are
/// not given.
inline ModelOptions options_of(std::string_view family, Task task, std::string_view size = "",
                               std::int64_t classes = 0) {
  ModelOptions options = default_options(family, task);
  if (!size.empty()) options.size = size;
  if (classes > 0) options.classes = classes;
  return options;
}

/// The same network but for a change of its options.
template <class Change>
ModelOptions with(ModelOptions options, const Change& change) {
  change(options);
  return options;
}

/// Published numbers: of trainable parameters and, in 10^9, of multiply-accumulates, with half a
/// unit of their last digit.
struct Published {
  std::string name;
  ModelOptions options;
  std::int64_t parameters = 0;
  double macs = 0.0;
  double half_unit = 0.005;
};

/// Expects the published numbers. They are the same with every norm, for any groups.
template <class Rows>
void expect_published(const Rows& rows) {
  for (Published row : rows) {
    for (const NormKind norm : {row.options.norm, NormKind::Batch, NormKind::Group}) {
      row.options.norm = norm;
      if (norm == NormKind::Group) row.options.groups = 4;
      const Graph graph = build_model(row.options);
      EXPECT_EQ(graph.trainable_elements(), row.parameters) << row.name;
      if (row.macs == 0.0) continue;
      const double giga = static_cast<double>(graph.forward_macs()) / 1e9;
      EXPECT_NEAR(giga, row.macs, row.half_unit) << row.name;
    }
  }
}

inline void refuses(const ModelOptions& options, const std::string& message) {
  expect_error(ErrorKind::Config, message, [&] { (void)build_model(options); });
}

/// Names of all layers, in one line.
inline std::string layer_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Layer& layer : graph.layers) names.push_back(layer.name);
  return fmt::format("{}", fmt::join(names, " "));
}

/// Names of a layer's ops, in one line. Those below the layer's name are given without it.
inline std::string op_names(const Graph& graph, const std::string& layer) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops) {
    if (graph.layers[op.layer.at()].name != layer) continue;
    names.push_back(op.name.starts_with(layer + "/") ? op.name.substr(layer.size() + 1) : op.name);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

template <class Kind>
const Kind& kind_of(const Graph& graph, std::string_view op) {
  return std::get<Kind>(graph.op(graph.find(op)).kind);
}

template <class Kind>
int count_of(const Graph& graph) {
  int count = 0;
  for (const Op& op : graph.ops) count += std::holds_alternative<Kind>(op.kind) ? 1 : 0;
  return count;
}

inline Shape output_of(const Graph& graph, std::string_view op) {
  return graph.value(graph.op(graph.find(op)).output).shape;
}

/// Name of the op that makes input number `i` of `op`.
inline std::string reads(const Graph& graph, std::string_view op, std::size_t i = 0) {
  return graph.op(graph.value(graph.op(graph.find(op)).inputs.at(i)).producer).name;
}

inline const Initialiser& start_of(const Graph& graph, std::string_view parameter) {
  for (const Parameter& p : graph.parameters) {
    if (p.name == parameter) return p.init;
  }
  ADD_FAILURE() << "no parameter " << parameter;
  static const Initialiser none;
  return none;
}

}  // namespace millrace::models
