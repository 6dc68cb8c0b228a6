// SPDX-License-Identifier: Apache-2.0
#include "pipeline/program.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "pipeline/compiler.hpp"

namespace millrace::pipeline {

OpRange whole(const Graph& graph) { return {0, static_cast<std::int32_t>(graph.ops.size())}; }

bool names_layer(std::span<const std::string> names, std::string_view layer) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return layer == name || (layer.starts_with(name) && layer.substr(name.size()).starts_with('/'));
  });
}

ProgramOptions with_chosen(ProgramOptions options, const ChosenSegments& chosen) {
  options.recompute = Recompute::Stage;
  options.segments = chosen.segments;
  options.kept_segments = chosen.kept;
  options.segments_chosen = true;
  return options;
}

std::int64_t span_of(const Graph& graph) {
  const models::Op* first = nullptr;
  const auto span = [](const models::Op& op) { return std::get<models::BatchNorm>(op.kind).span; };
  for (const models::Op& op : graph.ops) {
    if (!std::holds_alternative<models::BatchNorm>(op.kind)) continue;
    if (first == nullptr) first = &op;
    if (span(op) != span(*first))
      fail(ErrorKind::Config,
           "op {} shares its batch statistics between {} replicas, op {} between {}; use one span "
           "for all batch normalizations",
           first->name, span(*first), op.name, span(op));
  }
  return first != nullptr ? span(*first) : 1;
}

StageProgram compile(const Graph& graph, OpRange range, const ProgramOptions& options) {
  MILLRACE_ASSERT(!options.mixing || options.mode == Mode::Training);
  MILLRACE_ASSERT(range.first >= 0 && range.first < range.last &&
                  range.last <= static_cast<std::int32_t>(graph.ops.size()));
  return Compiler(graph, range, options).run();
}

}  // namespace millrace::pipeline
