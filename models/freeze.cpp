// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/text.hpp"
#include "models/graph.hpp"

namespace millrace::models {
namespace {

void require_match(const Graph& graph, const std::string& filter) {
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.trainable()) continue;
    if (contains_any(parameter.name, {&filter, 1})) return;
    names.push_back(parameter.name);
  }
  constexpr std::size_t kShown = 5;
  fail(ErrorKind::Config,
       "--variable-filter: no trainable parameter of {} has '{}' in its name; the nearest are {}",
       graph.name, filter, join(nearest_containing(filter, names, kShown), ", "));
}

}  // namespace

void train_only(Graph& graph, std::span<const std::string> filters) {
  for (const std::string& filter : filters) require_match(graph, filter);
  for (Parameter& parameter : graph.parameters)
    parameter.frozen =
        parameter.trainable() && !filters.empty() && !contains_any(parameter.name, filters);
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
