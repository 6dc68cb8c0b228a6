// SPDX-License-Identifier: Apache-2.0
#include "partition/cuts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/text.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::partition {
namespace {

std::int32_t op_count(const Graph& graph) { return static_cast<std::int32_t>(graph.ops.size()); }

/// Whether blocks end with a layer for their activation (resnet-50, resnext-101).
bool is_residual(const Graph& graph) { return graph.name.rfind("resne", 0) == 0; }

[[noreturn]] void fail_unknown(const Graph& graph, const std::string& split) {
  std::vector<std::string> names;
  for (const models::Layer& layer : graph.layers) names.push_back(layer.name);
  for (const models::Op& op : graph.ops) names.push_back(op.name);
  const std::string nearest = nearest_match(split, names);
  const std::string hint = nearest.empty()
                               ? fmt::format("its layers go from {} to {}",
                                             graph.layers.front().name, graph.layers.back().name)
                               : fmt::format("did you mean {}?", nearest);
  fail(ErrorKind::Config, "`pipeline-splits`: {} has no layer or op '{}'; {}", graph.name, split,
       hint);
}

OpId find_cut(const Graph& graph, const std::string& split) {
  const OpId op = graph.find(split);
  if (!op.valid()) fail_unknown(graph, split);
  if (op.value == 0) {
    fail(ErrorKind::Config,
         "`pipeline-splits`: {} is the beginning of {}, so the first stage would be empty; a split "
         "is the first layer of the next stage",
         split, graph.name);
  }
  return op;
}

struct Cut {
  OpId op;
  const std::string* name = nullptr;
};

/// Errors: Config unless the cuts are distinct and in the order of the network.
void check_order(const Graph& graph, const std::vector<Cut>& cuts) {
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    const auto same = std::find_if(cuts.begin(), cuts.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const Cut& cut) { return cut.op == cuts[i].op; });
    if (same == cuts.begin() + static_cast<std::ptrdiff_t>(i)) continue;
    if (*same->name == *cuts[i].name)
      fail(ErrorKind::Config, "`pipeline-splits`: {} is given twice", *same->name);
    fail(ErrorKind::Config, "`pipeline-splits`: {} and {} both mean op {}; remove one", *same->name,
         *cuts[i].name, graph.op(cuts[i].op).name);
  }
  const auto later = [](const Cut& a, const Cut& b) { return a.op < b.op; };
  const auto end = std::is_sorted_until(cuts.begin(), cuts.end(), later);
  if (end == cuts.end()) return;
  std::vector<Cut> sorted = cuts;
  std::sort(sorted.begin(), sorted.end(), later);
  std::vector<std::string> names;
  names.reserve(sorted.size());
  for (const Cut& cut : sorted) names.push_back(*cut.name);
  fail(ErrorKind::Config, "`pipeline-splits`: {} comes before {} in {}; use the order {}",
       *end->name, *std::prev(end)->name, graph.name, join(names, " "));
}

}  // namespace

std::vector<std::string> possible_splits(const Graph& graph) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i < graph.layers.size(); ++i) {
    const std::string& name = graph.layers[i].name;
    if (!is_residual(graph) || name.find("relu") != std::string::npos) names.push_back(name);
  }
  return names;
}

std::vector<OpId> op_cuts(const Graph& graph) {
  std::vector<OpId> cuts;
  for (std::int32_t i = 1; i < op_count(graph); ++i) cuts.push_back(OpId{i});
  return cuts;
}

std::string cut_name(const Graph& graph, OpId op) {
  const models::Layer& layer = graph.layers.at(graph.op(op).layer.at());
  return layer.first_op == op ? layer.name : graph.op(op).name;
}

std::vector<OpRange> stages_of(const Graph& graph, std::span<const std::string> splits) {
  std::vector<Cut> cuts;
  for (const std::string& split : splits) cuts.push_back({find_cut(graph, split), &split});
  check_order(graph, cuts);
  std::vector<OpRange> stages;
  std::int32_t first = 0;
  for (const Cut& cut : cuts) {
    stages.push_back({first, cut.op.value});
    first = cut.op.value;
  }
  stages.push_back({first, op_count(graph)});
  return stages;
}

std::vector<std::string> splits_of(const Graph& graph, std::span<const OpRange> stages) {
  std::vector<std::string> names;
  for (std::size_t s = 1; s < stages.size(); ++s)
    names.push_back(cut_name(graph, OpId{stages[s].first}));
  return names;
}

void check_count(const Graph& graph, std::span<const std::string> splits, std::int32_t stages) {
  if (std::ssize(splits) == stages - 1) return;
  fail(ErrorKind::Config,
       "`pipeline-splits` not specified or wrong number of splits. Need {} of ['{}']", stages - 1,
       join(possible_splits(graph), "', '"));
}

std::vector<ValueId> values_on(const Graph& graph, std::span<const OpRange> stages, Link link,
                               Direction direction) {
  std::vector<ValueId> values;
  for (const pipeline::Message& message : pipeline::messages(graph, stages)) {
    // A gradient goes from the later stage to the earlier one.
    const auto [first, last] = std::minmax(message.from, message.to);
    const bool here = first == link.from && last == link.to;
    if (here && message.gradient == (direction == Direction::Gradients))
      values.push_back(message.value);
  }
  return values;
}

std::int64_t message_bytes(const Graph& graph, std::span<const OpRange> stages, Link link,
                           std::int64_t batch, DType type, Direction direction) {
  std::int64_t bytes = 0;
  for (const ValueId v : values_on(graph, stages, link, direction))
    bytes += batch * graph.value(v).shape.elements() * size_of(type);
  return bytes;
}

}  // namespace millrace::partition
