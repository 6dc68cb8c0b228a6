// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <variant>

#include "pipeline/compiler.hpp"
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {

using models::Op;

Grouping::Grouping(const Graph& graph, OpRange range, const ProgramOptions& options)
    : graph_(graph), range_(range), options_(options), readers_(graph.values.size()) {
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    for (const ValueId v : graph.ops[i].inputs) {
      readers_[v.at()].push_back(OpId{static_cast<std::int32_t>(i)});
    }
  }
}

bool Grouping::read_here(ValueId value) const {
  const std::vector<OpId>& all = readers(value);
  return std::any_of(all.begin(), all.end(), [&](OpId r) { return range_.contains(r); });
}

bool Grouping::read_behind(ValueId value) const {
  const std::vector<OpId>& all = readers(value);
  return std::any_of(all.begin(), all.end(), [&](OpId r) { return r.value >= range_.last; });
}

bool Grouping::is_identity(OpId op) const {
  return options_.mode == Mode::Evaluation && op.valid() && range_.contains(op) &&
         lowering_of(graph_.op(op)).training_only;
}

ValueId Grouping::source(ValueId value) const {
  while (is_identity(graph_.value(value).producer)) {
    value = graph_.op(graph_.value(value).producer).inputs.front();
  }
  return value;
}

/// The only op that reads `value` or copies of it, if it is in the range.
OpId Grouping::sole_reader(ValueId value) const {
  const std::vector<OpId>& all = readers(value);
  if (all.size() != 1 || !range_.contains(all.front())) return OpId{};
  return is_identity(all.front()) ? sole_reader(graph_.op(all.front()).output) : all.front();
}

void Grouping::fuse_activation(Node& node, bool relu_only, std::vector<bool>& taken) const {
  const OpId next = sole_reader(node.output);
  if (!next.valid()) return;
  const auto* activate = std::get_if<models::Activate>(&graph_.op(next).kind);
  if (activate == nullptr || !is_fused(activate->kind) ||
      (relu_only && activate->kind != Activation::Relu))
    return;
  node.fn = activate->kind;
  node.last = next;
  node.output = graph_.op(next).output;
  taken[next.at()] = true;
}

/// An addition fuses with its first operand; the other operand is stored.
void Grouping::fuse_addition(Node& node, std::vector<bool>& taken) const {
  const OpId next = sole_reader(node.output);
  if (!next.valid() || !std::holds_alternative<models::Add>(graph_.op(next).kind) ||
      taken[next.at()])
    return;
  const Op& add = graph_.op(next);
  const ValueId a = source(add.inputs[0]);
  const ValueId b = source(add.inputs[1]);
  if (a == b) return;
  taken[next.at()] = true;
  node.skip = a == node.output ? b : a;
  node.output = add.output;
  node.last = next;
  node.adder = next;
}

Node Grouping::group_from(OpId id, std::vector<bool>& taken) const {
  const Op& op = graph_.op(id);
  const Fusion fusion = lowering_of(op).fusion;
  Node node{id, id, source(op.inputs.front()), ValueId{}, op.output};
  if (fusion.joins_inputs) {
    for (const ValueId v : op.inputs) node.parts.push_back({source(v), id});
  }
  if (fusion.adds_inputs) {
    node.skip = source(op.inputs[1]);
    node.adder = id;
  }
  if (fusion.addition) fuse_addition(node, taken);
  const bool added = node.skip.valid();
  if (added ? fusion.relu_of_sum : fusion.activation != FusedActivation::None) {
    fuse_activation(node, added || fusion.activation == FusedActivation::Relu, taken);
  }
  return node;
}

/// A ReLU with a kernel of its own is fused into a concatenation that is its only reader.
void Grouping::fuse_into_concat(std::vector<Node>& nodes) const {
  const auto maker_of = [&](ValueId value) {
    return std::find_if(nodes.begin(), nodes.end(),
                        [&](const Node& n) { return n.output == value; });
  };
  for (Node& concat : nodes) {
    for (Node::Part& part : concat.parts) {
      const auto maker = maker_of(part.input);
      if (maker == nodes.end() || sole_reader(part.input) != concat.leader) continue;
      const bool apart = lowering_of(graph_.op(maker->leader)).fusion.separate_kernel;
      if (!apart || maker->fn == Activation::None) continue;
      const Op& relu = graph_.op(maker->last);
      part = {source(relu.inputs.front()), maker->last, maker->fn};
      maker->output = part.input;
      maker->last = maker->leader;
      maker->fn = Activation::None;
    }
  }
}

/// A norm that is read only by the addition behind another norm of its kind is applied there.
void Grouping::fuse_norms(std::vector<Node>& nodes) const {
  for (Node& sum : nodes) {
    const models::OpKind& kind = graph_.op(sum.leader).kind;
    if (!sum.skip.valid() || !models::is_norm(kind) || sole_reader(sum.skip) != sum.adder) continue;
    const auto norm = std::ranges::find(nodes, sum.skip, &Node::output);
    if (norm == nodes.end() || norm->last != norm->leader ||
        graph_.op(norm->leader).kind.index() != kind.index())
      continue;
    sum.skip_norm = norm->leader;
    norm->applied_behind = true;
  }
}

/// The statistics of a norm that waits for what is added to it are computed at once, when the
/// kernel before may do it or has left the norm's input in the cache.
void Grouping::split_norms(std::vector<Node>& nodes) const {
  for (std::size_t i = 0, grouped = nodes.size(); i < grouped; ++i) {
    Node& sum = nodes[i];
    if (!sum.skip.valid() || sum.adder.value == sum.leader.value + 1 ||
        !models::is_norm(graph_.op(sum.leader).kind))
      continue;
    sum.counted = true;
    Node statistics{sum.leader, sum.leader, sum.input, ValueId{}, ValueId{}};
    statistics.applied_behind = true;
    nodes.push_back(statistics);
  }
}

std::vector<Node> Grouping::nodes() const {
  std::vector<Node> result;
  std::vector<bool> taken(graph_.ops.size(), false);
  for (std::int32_t i = range_.first; i < range_.last; ++i) {
    const OpId id{i};
    if (taken[id.at()]) continue;
    if (is_identity(id)) {
      // Left out, unless it passes an input of the stage on to a later stage: one buffer cannot be
      // received and sent.
      const ValueId output = graph_.op(id).output;
      const OpId maker = graph_.value(source(output)).producer;
      const bool made_here = maker.valid() && range_.contains(maker);
      if (made_here || !read_behind(output)) continue;
    }
    result.push_back(group_from(id, taken));
  }
  fuse_into_concat(result);
  if (options_.saves_traffic) {
    fuse_norms(result);
    split_norms(result);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Node& a, const Node& b) { return a.last < b.last; });
  return result;
}

}  // namespace millrace::pipeline
