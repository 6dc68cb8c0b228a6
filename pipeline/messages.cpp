// SPDX-License-Identifier: Apache-2.0
#include "pipeline/messages.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace millrace::pipeline {
namespace {

std::vector<std::int32_t> stage_by_op(std::span<const OpRange> ranges) {
  std::vector<std::int32_t> stage_of;
  for (std::size_t s = 0; s < ranges.size(); ++s)
    for (std::int32_t op = ranges[s].first; op < ranges[s].last; ++op)
      stage_of.push_back(static_cast<std::int32_t>(s));
  return stage_of;
}

}  // namespace

std::vector<Message> messages(const Graph& graph, std::span<const OpRange> ranges) {
  const std::vector<std::int32_t> stage_of = stage_by_op(ranges);
  std::vector<std::set<std::int32_t>> readers(graph.values.size());
  for (std::size_t op = 0; op < graph.ops.size(); ++op)
    for (const ValueId value : graph.ops[op].inputs) readers[value.at()].insert(stage_of[op]);
  const std::vector<bool> wanted = models::wanted_gradients(graph);
  std::vector<Message> result;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const ValueId value{static_cast<std::int32_t>(v)};
    if (!graph.value(value).producer.valid()) continue;  // images are read where they are needed
    const std::int32_t maker = stage_of[graph.value(value).producer.at()];
    std::int32_t before = maker;
    for (const std::int32_t reader : readers[v]) {
      if (reader == maker) continue;
      result.push_back({value, maker, reader, false});
      if (wanted[v]) result.push_back({value, reader, before, true});
      before = reader;
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<Link> links(std::span<const Message> messages) {
  std::map<std::pair<std::int32_t, std::int32_t>, Link> by_ends;
  for (const Message& message : messages) {
    const auto [from, to] = std::minmax(message.from, message.to);
    Link& link = by_ends.try_emplace({from, to}, Link{from, to, false, false}).first->second;
    (message.gradient ? link.gradients : link.activations) = true;
  }
  std::vector<Link> result;
  result.reserve(by_ends.size());
  for (const auto& entry : by_ends) result.push_back(entry.second);
  return result;
}

std::vector<Link> links(const Graph& graph, std::span<const OpRange> ranges) {
  return links(messages(graph, ranges));
}

}  // namespace millrace::pipeline
