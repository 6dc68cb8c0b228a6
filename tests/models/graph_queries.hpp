// SPDX-License-Identifier: Apache-2.0
//
// Queries of a graph for the tests of the model families.
#pragma once

#include "models/graph.hpp"
#include "models/registry.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/test.hpp"

namespace millrace::models {

/// A published number of trainable parameters.
struct Count {
  std::string name;
  ModelOptions options;
  std::int64_t parameters;
};

/// Expects the published numbers. They are the same with every norm, for any groups.
template <class Counts>
void expect_counts(const Counts& counts) {
  for (Count count : counts) {
    for (const NormKind norm : {count.options.norm, NormKind::Batch, NormKind::Group}) {
      count.options.norm = norm;
      if (norm == NormKind::Group) count.options.groups = 4;
      EXPECT_EQ(build_model(count.options).trainable_elements(), count.parameters) << count.name;
    }
  }
}

inline void refuses(const ModelOptions& options, const std::string& message) {
  expect_error(ErrorKind::Config, message, [&] { (void)build_model(options); });
}

inline std::vector<std::string> layer_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Layer& layer : graph.layers) names.push_back(layer.name);
  return names;
}

inline std::vector<std::string> op_names(const Graph& graph, std::string_view layer) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops) {
    if (graph.layers[op.layer.at()].name == layer) names.push_back(op.name);
  }
  return names;
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
