// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/text.hpp"
#include "partition/cuts.hpp"
#include "partition/plan.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::partition {
namespace {

using models::OpId;
using Rows = std::vector<std::vector<std::string>>;

std::string millis(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

/// The layer that ends with this op, otherwise the op.
std::string end_name(const Graph& graph, OpId op) {
  const OpId next{op.value + 1};
  const models::Op& last = graph.op(op);
  const bool ends = next.at() == graph.ops.size() || graph.op(next).layer != last.layer;
  return ends ? graph.layers.at(last.layer.at()).name : last.name;
}

std::string span_text(const Graph& graph, OpRange range) {
  const std::string first = cut_name(graph, OpId{range.first});
  const std::string last = end_name(graph, OpId{range.last - 1});
  return first == last ? first : fmt::format("{} .. {}", first, last);
}

std::int64_t parameters_of(const Graph& graph, OpRange range) {
  std::int64_t sum = 0;
  for (const models::Parameter& p : graph.parameters)
    if (range.contains(p.op) && p.trainable()) sum += p.elements();
  return sum;
}

/// Bytes of activations that a stage sends per micro-batch.
std::int64_t bytes_out(const Plan& plan, const Graph& graph, const std::vector<OpRange>& stages,
                       const std::vector<Link>& links, std::size_t stage) {
  std::int64_t bytes = 0;
  for (const Link& link : links)
    if (link.from == static_cast<std::int32_t>(stage))
      bytes += message_bytes(graph, stages, link, plan.batch, plan.type, Direction::Activations);
  return bytes;
}

std::string count(std::size_t number, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", number, number == 1 ? one : many);
}

}  // namespace

Rows stage_table(const Plan& plan, const Graph& graph) {
  const std::vector<OpRange> stages = stages_of(graph, plan.splits);
  const std::vector<Link> links = pipeline::links(graph, stages);
  double all = 0.0;
  for (const pipeline::StageCost& cost : plan.costs) all += cost.work();
  Rows rows = {{"stage", "device", "layers", "forward ms", "backward ms", "time", "parameters",
                "bytes out", "memory"}};
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const pipeline::StageCost& cost = plan.costs.at(s);
    const std::int64_t out = bytes_out(plan, graph, stages, links, s);
    rows.push_back(
        {fmt::format("{}", s), fmt::format("{}", plan.device_of.at(s)), span_text(graph, stages[s]),
         millis(cost.forward), millis(cost.backward_input + cost.backward_weight),
         percent(all > 0.0 ? cost.work() / all : 0.0), with_commas(parameters_of(graph, stages[s])),
         out > 0 ? human_bytes(out) : "", human_bytes(plan.memory.at(s))});
  }
  return rows;
}

std::string to_text(const Plan& plan, const Graph& graph) {
  const auto devices =
      static_cast<std::size_t>(1 + *std::max_element(plan.device_of.begin(), plan.device_of.end()));
  return fmt::format(
      "{}: {} on {}, schedule {}, {} of {} in {}\n{}step {} ms (lower bound {} ms); the devices "
      "wait {} of the time; costs: {}\n",
      plan.model, count(plan.stages(), "stage", "stages"), count(devices, "device", "devices"),
      plan.schedule,
      count(static_cast<std::size_t>(plan.micro_batches), "micro-batch", "micro-batches"),
      plan.batch, name_of(plan.type), text_table(stage_table(plan, graph), 3), millis(plan.seconds),
      millis(plan.bound), percent(plan.bubble), plan.cost_model);
}

std::string to_text(std::span<const ProcessMemory> processes) {
  Rows devices = {{"rank", "replica", "device", "weights and state", "activations",
                   "packed weights, scratch", "sums over replicas", "images", "device memory"}};
  Rows rows = {{"rank", "devices", "base", "margin", "messages", "loader", "checkpoints", "other",
                "process peak"}};
  for (const ProcessMemory& p : processes) {
    const std::string rank = fmt::format("{}", p.rank);
    for (const DeviceMemory& d : p.devices)
      devices.push_back({rank, fmt::format("{}", d.replica), fmt::format("{}", d.device),
                         human_bytes(d.state), human_bytes(d.activations), human_bytes(d.kernels),
                         human_bytes(d.sums), human_bytes(d.images), human_bytes(d.total())});
    rows.push_back({rank, human_bytes(p.device_total()), human_bytes(p.base), human_bytes(p.margin),
                    human_bytes(p.messages), human_bytes(p.loader), human_bytes(p.checkpoints),
                    human_bytes(p.other), human_bytes(p.peak())});
  }
  return fmt::format("Memory of the devices (exact):\n{}\nMemory of the processes:\n{}",
                     text_table(devices, 0), text_table(rows, 0));
}

std::string cut_table(const Graph& graph, std::span<const OpCost> costs, std::int64_t batch,
                      DType type) {
  double all = 0.0;
  for (const OpCost& cost : costs) all += cost.seconds();
  Rows rows = {{"split", "bytes crossing", "time before", "parameters before", "stash before"}};
  double seconds = 0.0;
  std::int64_t stash = 0;
  std::size_t op = 0;
  for (const std::string& split : possible_splits(graph)) {
    const OpId cut = graph.find(split);
    for (; op < cut.at(); ++op) {
      seconds += costs[op].seconds();
      stash += costs[op].stash_bytes;
    }
    rows.push_back({split, human_bytes(costs[op].boundary_bytes),
                    percent(all > 0.0 ? seconds / all : 0.0),
                    with_commas(parameters_of(graph, {0, cut.value})), human_bytes(stash)});
  }
  return fmt::format("For a micro-batch of {} in {}:\n{}", batch, name_of(type),
                     text_table(rows, 1));
}

std::string text_table(const std::vector<std::vector<std::string>>& rows,
                       std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      const bool left = i < left_columns || rows.front()[i].empty();
      line += (i > 0 ? "  " : "") + (left ? row[i] + blanks : blanks + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace millrace::partition
