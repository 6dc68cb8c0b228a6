// SPDX-License-Identifier: Apache-2.0
#include "pipeline/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "core/image_records.hpp"

namespace millrace::pipeline {
namespace {

using models::Op;

/// Ops that become one kernel: a leader and the ops fused after it.
struct Node {
  /// Operand of a concatenation, with the activation that is fused into it.
  struct Part {
    ValueId input;
    OpId reader;  ///< the op that reads it: the activation, or the concatenation
    FusedFn fn = FusedFn::None;
  };
  OpId leader;  ///< norm, convolution, pool, add, activation, loss ...
  OpId last;    ///< last op of the group; nodes run in this order
  ValueId input;
  ValueId skip;  ///< other operand of an addition
  ValueId output;
  FusedFn fn = FusedFn::None;
  OpId adder = {};               ///< the addition, which reads `skip`
  std::vector<Part> parts = {};  ///< of a concatenation
};

template <class Kind>
bool is(const Op& op) {
  return std::holds_alternative<Kind>(op.kind);
}
bool is_norm(const Op& op) { return is<models::BatchNorm>(op) || is<models::GroupNorm>(op); }
bool is_weighted(const Op& op) { return is<models::Conv>(op) || is<models::Dense>(op); }
bool drops(const Op& op) { return is<models::Dropout>(op) || is<models::DropConnect>(op); }

FusedFn fused(models::ActivationKind kind) {
  switch (kind) {
    case models::ActivationKind::Relu:
      return FusedFn::Relu;
    case models::ActivationKind::Swish:
      return FusedFn::Swish;
    case models::ActivationKind::Sigmoid:
      return FusedFn::Sigmoid;
  }
  return FusedFn::None;
}

/// Finds the groups of a range.
class Grouping {
 public:
  Grouping(const Graph& graph, OpRange range, Mode mode)
      : graph_(graph), range_(range), mode_(mode) {
    readers_.resize(graph.values.size());
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      for (const ValueId v : graph.ops[i].inputs) {
        readers_[v.at()].push_back(OpId{static_cast<std::int32_t>(i)});
      }
    }
  }
  [[nodiscard]] const std::vector<OpId>& readers(ValueId value) const {
    return readers_[value.at()];
  }
  [[nodiscard]] bool read_behind(ValueId value) const {
    const std::vector<OpId>& all = readers(value);
    return std::any_of(all.begin(), all.end(), [&](OpId r) { return r.value >= range_.last; });
  }
  [[nodiscard]] std::vector<Node> nodes() const;
  /// The value that `value` is a copy of: in evaluation the input of a dropout of the range.
  [[nodiscard]] ValueId source(ValueId value) const {
    while (is_identity(graph_.value(value).producer)) {
      value = graph_.op(graph_.value(value).producer).inputs.front();
    }
    return value;
  }

 private:
  [[nodiscard]] bool is_identity(OpId op) const {
    return mode_ == Mode::Evaluation && op.valid() && range_.contains(op) && drops(graph_.op(op));
  }
  /// The only op that reads `value` or copies of it, if it is in the range.
  [[nodiscard]] OpId sole_reader(ValueId value) const {
    const std::vector<OpId>& all = readers(value);
    if (all.size() != 1 || !range_.contains(all.front())) return OpId{};
    return is_identity(all.front()) ? sole_reader(graph_.op(all.front()).output) : all.front();
  }
  void fuse_activation(Node& node, bool relu_only, std::vector<bool>& taken) const;
  void fuse_addition(Node& node, std::vector<bool>& taken) const;
  void fuse_into_concat(std::vector<Node>& nodes) const;
  [[nodiscard]] Node group_from(OpId id, std::vector<bool>& taken) const;

  const Graph& graph_;
  OpRange range_;
  Mode mode_;
  std::vector<std::vector<OpId>> readers_;
};

void Grouping::fuse_activation(Node& node, bool relu_only, std::vector<bool>& taken) const {
  const OpId next = sole_reader(node.output);
  if (!next.valid() || !is<models::Activation>(graph_.op(next))) return;
  const FusedFn fn = fused(std::get<models::Activation>(graph_.op(next).kind).kind);
  if (relu_only && fn != FusedFn::Relu) return;
  node.fn = fn;
  node.last = next;
  node.output = graph_.op(next).output;
  taken[next.at()] = true;
}

/// An addition fuses with its first operand; the other operand is stored.
void Grouping::fuse_addition(Node& node, std::vector<bool>& taken) const {
  const OpId next = sole_reader(node.output);
  if (!next.valid() || !is<models::Add>(graph_.op(next)) || taken[next.at()]) return;
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
  Node node{id, id, source(op.inputs.front()), ValueId{}, op.output};
  if (is_norm(op)) {
    fuse_addition(node, taken);
    fuse_activation(node, node.skip.valid(), taken);
  } else if (is<models::Add>(op)) {
    node.skip = source(op.inputs[1]);
    node.adder = id;
    fuse_activation(node, true, taken);
  } else if (is_weighted(op)) {
    fuse_activation(node, true, taken);
  } else if (is<models::ScaleChannels>(op)) {
    fuse_addition(node, taken);
    if (node.skip.valid()) fuse_activation(node, true, taken);
  } else if (is<models::DropConnect>(op)) {
    fuse_addition(node, taken);
  } else if (is<models::Concat>(op)) {
    for (const ValueId v : op.inputs) node.parts.push_back({source(v), id});
  }
  return node;
}

/// A ReLU after a convolution is fused into a concatenation that is its only reader.
void Grouping::fuse_into_concat(std::vector<Node>& nodes) const {
  const auto maker_of = [&](ValueId value) {
    return std::find_if(nodes.begin(), nodes.end(),
                        [&](const Node& n) { return n.output == value; });
  };
  for (Node& concat : nodes) {
    for (Node::Part& part : concat.parts) {
      const auto maker = maker_of(part.input);
      if (maker == nodes.end() || sole_reader(part.input) != concat.leader) continue;
      if (!is_weighted(graph_.op(maker->leader)) || maker->fn == FusedFn::None) continue;
      const Op& relu = graph_.op(maker->last);
      part = {source(relu.inputs.front()), maker->last, maker->fn};
      maker->output = part.input;
      maker->last = maker->leader;
      maker->fn = FusedFn::None;
    }
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
  std::stable_sort(result.begin(), result.end(),
                   [](const Node& a, const Node& b) { return a.last < b.last; });
  return result;
}

/// Buffers that a forward pass keeps.
struct ForwardBuffers {
  std::vector<BufferId> activation;  ///< by ValueId
  std::vector<BufferId> statistics;  ///< by OpId of the norm
  std::vector<BufferId> winner;      ///< by OpId of the pool
};

class Compiler {
 public:
  Compiler(const Graph& graph, OpRange range, const ProgramOptions& options)
      : graph_(graph),
        grouping_(graph, range, options.mode),
        nodes_(grouping_.nodes()),
        wanted_(models::wanted_gradients(graph)) {
    program_.range = range;
    program_.options = options;
  }
  [[nodiscard]] StageProgram run() &&;

 private:
  struct Contribution {
    OpId reader;
    BufferId buffer;
  };

  [[nodiscard]] bool training() const { return program_.options.mode == Mode::Training; }
  [[nodiscard]] std::int64_t activation_bytes(ValueId v) const {
    return program_.options.batch * graph_.value(v).shape.elements() *
           size_of(program_.options.type);
  }
  [[nodiscard]] std::int64_t channels(OpId norm) const {
    return graph_.value(graph_.op(norm).output).shape.c;
  }
  /// Sets of statistics per channel: one per batch, or one per sample.
  [[nodiscard]] std::int64_t instances(OpId norm) const {
    return is<models::BatchNorm>(graph_.op(norm)) ? 1 : program_.options.batch;
  }
  /// Whether the statistics of a norm span several replicas.
  [[nodiscard]] bool spans_replicas(OpId norm) const {
    const auto* batch_norm = std::get_if<models::BatchNorm>(&graph_.op(norm).kind);
    return training() && batch_norm != nullptr && batch_norm->span > 1;
  }
  [[nodiscard]] const std::string& op_name(OpId op) const { return graph_.op(op).name; }

  BufferId make_buffer(std::string name, std::int64_t bytes);
  BufferId make_gradient(ValueId value);
  BufferId make_exchange(OpId norm);
  Call& emit(Phase phase, KernelKind kind, OpId op,
             std::initializer_list<std::pair<Role, BufferId>> buffers);

  void make_crossings();
  BufferId make_arrival();
  BufferId mixing_buffer();
  void prepare_images(Phase phase, ForwardBuffers& kept);
  [[nodiscard]] bool recomputes_images() const;
  void forward(Phase phase, bool repeated, ForwardBuffers& kept);
  [[nodiscard]] bool is_recomputed(const Node& node) const;
  void forward_node(const Node& node, Phase phase, bool repeated, ForwardBuffers& kept);
  BufferId forward_statistics(OpId norm, BufferId x, Phase phase, bool repeated,
                              const ForwardBuffers& kept);
  void forward_norm(const Node& node, Phase phase, bool repeated, ForwardBuffers& kept);
  void forward_loss(const Node& node, Phase phase, const ForwardBuffers& kept);
  void forward_weighted(const Node& node, Phase phase, ForwardBuffers& kept);
  void forward_concat(const Node& node, Phase phase, ForwardBuffers& kept);
  void forward_scale(const Node& node, Phase phase, ForwardBuffers& kept);
  void forward_drop(const Node& node, Phase phase, ForwardBuffers& kept);
  void forward_pool(const Node& node, Phase phase, ForwardBuffers& kept);
  BufferId make_output(const Node& node, ForwardBuffers& kept);
  void remove_unread(std::size_t first_kept);

  void backward();
  void backward_node(const Node& node);
  void backward_norm(const Node& node);
  void backward_weighted(const Node& node);
  void backward_simple(const Node& node);
  void backward_add(const Node& node);
  void backward_activation(const Node& node);
  void backward_concat(const Node& node);
  void backward_scale(const Node& node);
  void backward_drop(const Node& node);
  BufferId joined_gradient(const Node& node, std::span<const BufferId> dy);
  BufferId undo_fused(const Node& node, BufferId dy);

  [[nodiscard]] bool wants_gradient(ValueId v) const { return wanted_[v.at()]; }
  void contribute(ValueId value, OpId reader, BufferId buffer);
  std::vector<BufferId> take_gradients(ValueId value, std::size_t at_most);
  BufferId take_gradient(ValueId value) { return take_gradients(value, 1).front(); }
  [[nodiscard]] bool reusable(BufferId buffer, int own_uses) const {
    return pending_[buffer.at()] == own_uses && !read_later_[buffer.at()];
  }
  void release(BufferId buffer) { --pending_[buffer.at()]; }
  BufferId output_gradient(ValueId value, BufferId in_place);
  Phase weight_phase() const {
    return program_.options.backward == Backward::Split ? Phase::BackwardWeight
                                                        : Phase::BackwardInput;
  }

  const Graph& graph_;
  Grouping grouping_;
  std::vector<Node> nodes_;
  std::vector<bool> wanted_;  ///< by ValueId; see models::wanted_gradients
  StageProgram program_;
  ForwardBuffers kept_;
  BufferId arrival_;                                      ///< images before they are prepared
  std::vector<std::vector<Contribution>> contributions_;  ///< by ValueId
  std::vector<int> pending_;      ///< contributions that still use a buffer, by BufferId
  std::vector<bool> read_later_;  ///< buffers that a later phase reads: must not be overwritten
};

BufferId Compiler::make_buffer(std::string name, std::int64_t bytes) {
  program_.buffers.push_back({std::move(name), bytes});
  pending_.push_back(0);
  read_later_.push_back(false);
  return BufferId{static_cast<std::int32_t>(program_.buffers.size() - 1)};
}

BufferId Compiler::make_gradient(ValueId value) {
  const OpId producer = graph_.value(value).producer;
  const std::string& name = producer.valid() ? op_name(producer) : "images";
  return make_buffer("d " + name, activation_bytes(value));
}

/// Two doubles per channel and replica.
BufferId Compiler::make_exchange(OpId norm) {
  const std::int64_t span = std::get<models::BatchNorm>(graph_.op(norm).kind).span;
  return make_buffer(op_name(norm) + " exchange",
                     span * 2 * channels(norm) * static_cast<std::int64_t>(sizeof(double)));
}

Call& Compiler::emit(Phase phase, KernelKind kind, OpId op,
                     std::initializer_list<std::pair<Role, BufferId>> buffers) {
  Call call;
  call.kind = kind;
  call.op = op;
  for (const auto& [role, buffer] : buffers) call.at(role) = buffer;
  auto& list = program_.calls[static_cast<std::size_t>(phase)];
  list.push_back(call);
  return list.back();
}

void Compiler::make_crossings() {
  const OpRange range = program_.range;
  kept_.activation.resize(graph_.values.size());
  kept_.statistics.resize(graph_.ops.size());
  kept_.winner.resize(graph_.ops.size());
  contributions_.resize(graph_.values.size());
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    const ValueId v{static_cast<std::int32_t>(i)};
    const OpId producer = graph_.value(v).producer;
    const bool made_before = !producer.valid() || producer.value < range.first;
    const std::vector<OpId>& readers = grouping_.readers(v);
    const bool read_here =
        std::any_of(readers.begin(), readers.end(), [&](OpId r) { return range.contains(r); });
    const bool read_behind = grouping_.read_behind(v);
    if (made_before && read_here) {
      const bool prepared = !producer.valid() && prepares_images(program_.options);
      const std::string name = producer.valid() ? op_name(producer) : "images";
      const BufferId buffer = prepared ? make_arrival() : make_buffer(name, activation_bytes(v));
      kept_.activation[i] = buffer;
      program_.inputs.push_back({v, buffer, BufferId{}});
    }
    const bool passes_gradient = made_before && read_here && training() && wants_gradient(v);
    if (read_behind && (range.contains(producer) || passes_gradient)) {
      Crossing out{v, BufferId{}, BufferId{}};
      if (training() && wants_gradient(v)) {
        out.gradient = make_gradient(v);
        contribute(v, OpId{std::numeric_limits<std::int32_t>::max()}, out.gradient);
      }
      program_.outputs.push_back(out);
    }
  }
}

// ---- forward ------------------------------------------------------------------------------------

/// The buffer for images that arrive in another form than the network reads.
BufferId Compiler::make_arrival() {
  const std::int64_t batch = program_.options.batch;
  const DType type = image_type(program_.options);
  if (type == DType::U8)
    program_.scaling =
        make_buffer("scaling", batch * static_cast<std::int64_t>(sizeof(PixelScaling)));
  arrival_ =
      make_buffer("images that arrive", batch * graph_.input_shape.elements() * size_of(type));
  return arrival_;
}

/// One buffer for the images and the labels if both are in this stage.
BufferId Compiler::mixing_buffer() {
  if (program_.options.mixing && !program_.mixing.valid())
    program_.mixing = make_buffer(
        "mixing", program_.options.batch * static_cast<std::int64_t>(sizeof(ImageMixing)));
  return program_.mixing;
}

void Compiler::prepare_images(Phase phase, ForwardBuffers& kept) {
  if (!arrival_.valid()) return;
  const BufferId images = make_buffer("images", activation_bytes(Graph::input()));
  kept.activation[Graph::input().at()] = images;
  emit(phase, KernelKind::PrepareImages, grouping_.readers(Graph::input()).front(),
       {{Role::X, arrival_},
        {Role::Scaling, program_.scaling},
        {Role::Mixing, mixing_buffer()},
        {Role::Y, images}});
}

/// With recomputation of layers, images are prepared again if the layer that reads them is
/// recomputed.
bool Compiler::recomputes_images() const {
  if (program_.options.recompute != Recompute::Layers) return true;
  const OpId reader = grouping_.readers(Graph::input()).front();
  return names_layer(program_.options.recompute_layers,
                     graph_.layers[graph_.op(reader).layer.at()].name);
}

void Compiler::forward(Phase phase, bool repeated, ForwardBuffers& kept) {
  for (const Node& node : nodes_) forward_node(node, phase, repeated, kept);
}

bool Compiler::is_recomputed(const Node& node) const {
  if (program_.options.recompute != Recompute::Layers) return true;
  const auto named = [&](OpId op) {
    return names_layer(program_.options.recompute_layers,
                       graph_.layers[graph_.op(op).layer.at()].name);
  };
  // Fused ops are one kernel, so all of them must be recomputed.
  return named(node.leader) && named(node.last);
}

/// The buffer of the node's output.
BufferId Compiler::make_output(const Node& node, ForwardBuffers& kept) {
  const BufferId y = make_buffer(op_name(node.last), activation_bytes(node.output));
  kept.activation[node.output.at()] = y;
  return y;
}

/// Statistics of a norm's input, on this replica alone or over its group.
BufferId Compiler::forward_statistics(OpId norm, BufferId x, Phase phase, bool repeated,
                                      const ForwardBuffers& kept) {
  // Exchanged statistics are kept: they are small, and a second exchange would wait again.
  if (repeated && spans_replicas(norm)) return kept.statistics[norm.at()];
  const BufferId statistics =
      make_buffer(op_name(norm) + " statistics",
                  2 * instances(norm) * channels(norm) * static_cast<std::int64_t>(sizeof(float)));
  if (!training() && is<models::BatchNorm>(graph_.op(norm))) {
    emit(phase, KernelKind::NormRunning, norm, {{Role::Statistics, statistics}});
  } else if (spans_replicas(norm)) {
    const BufferId exchange = make_exchange(norm);
    emit(phase, KernelKind::NormMoments, norm, {{Role::X, x}, {Role::Exchange, exchange}});
    emit(phase, KernelKind::NormJoinMoments, norm,
         {{Role::Exchange, exchange}, {Role::Statistics, statistics}});
  } else {
    emit(phase, KernelKind::NormStatistics, norm, {{Role::X, x}, {Role::Statistics, statistics}})
        .repeated = repeated;
  }
  return statistics;
}

void Compiler::forward_norm(const Node& node, Phase phase, bool repeated, ForwardBuffers& kept) {
  const BufferId x = kept.activation[node.input.at()];
  const OpId norm = node.leader;
  const BufferId statistics = forward_statistics(norm, x, phase, repeated, kept);
  kept.statistics[norm.at()] = statistics;
  const BufferId y = make_output(node, kept);
  Call& apply = emit(phase, KernelKind::NormApply, norm,
                     {{Role::X, x}, {Role::Statistics, statistics}, {Role::Y, y}});
  apply.fn = node.fn;
  if (node.skip.valid()) {
    apply.at(Role::Skip) = kept.activation[node.skip.at()];
  }
}

void Compiler::forward_loss(const Node& node, Phase phase, const ForwardBuffers& kept) {
  const std::int64_t batch = program_.options.batch;
  const std::int64_t bytes = batch * static_cast<std::int64_t>(sizeof(float));
  program_.labels = make_buffer("labels", bytes);
  program_.loss = make_buffer("loss", bytes);
  program_.rank = make_buffer("rank", bytes);
  emit(phase, KernelKind::LossForward, node.leader,
       {{Role::X, kept.activation[node.input.at()]},
        {Role::Labels, program_.labels},
        {Role::Loss, program_.loss},
        {Role::Rank, program_.rank},
        {Role::Mixing, mixing_buffer()}});
}

/// A ReLU works in place: its gradient needs only the output, and no other op reads its input.
void Compiler::forward_weighted(const Node& node, Phase phase, ForwardBuffers& kept) {
  const BufferId x = kept.activation[node.input.at()];
  const BufferId y = make_output(node, kept);
  emit(phase, KernelKind::WeightedForward, node.leader, {{Role::X, x}, {Role::Y, y}});
  if (node.fn == FusedFn::None) return;
  emit(phase, KernelKind::ActivationForward, node.last, {{Role::X, y}, {Role::Y, y}}).fn = node.fn;
}

void Compiler::forward_concat(const Node& node, Phase phase, ForwardBuffers& kept) {
  const BufferId y = make_output(node, kept);
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    const Node::Part& part = node.parts[i];
    Call& call = emit(phase, KernelKind::ConcatForward, node.leader,
                      {{Role::X, kept.activation[part.input.at()]}, {Role::Y, y}});
    call.part = static_cast<std::int32_t>(i);
    call.fn = part.fn;
  }
}

void Compiler::forward_scale(const Node& node, Phase phase, ForwardBuffers& kept) {
  const ValueId scale = grouping_.source(graph_.op(node.leader).inputs[1]);
  const BufferId y = make_output(node, kept);
  Call& call = emit(phase, KernelKind::ScaleForward, node.leader,
                    {{Role::X, kept.activation[node.input.at()]},
                     {Role::Scale, kept.activation[scale.at()]},
                     {Role::Y, y}});
  call.fn = node.fn;
  if (node.skip.valid()) call.at(Role::Skip) = kept.activation[node.skip.at()];
}

void Compiler::forward_drop(const Node& node, Phase phase, ForwardBuffers& kept) {
  const Op& op = graph_.op(node.leader);
  const BufferId y = make_output(node, kept);
  const KernelKind kind = !training()               ? KernelKind::ActivationForward  // a copy
                          : is<models::Dropout>(op) ? KernelKind::DropoutForward
                                                    : KernelKind::DropConnectForward;
  Call& call =
      emit(phase, kind, node.leader, {{Role::X, kept.activation[node.input.at()]}, {Role::Y, y}});
  if (node.skip.valid()) call.at(Role::Skip) = kept.activation[node.skip.at()];
}

void Compiler::forward_pool(const Node& node, Phase phase, ForwardBuffers& kept) {
  const Op& op = graph_.op(node.leader);
  const BufferId y = make_output(node, kept);
  Call& pool = emit(phase, KernelKind::PoolForward, node.leader,
                    {{Role::X, kept.activation[node.input.at()]}, {Role::Y, y}});
  if (!training() || std::get<models::Pool>(op.kind).kind != models::PoolKind::Max) return;
  const BufferId winner = make_buffer(
      op.name + " winner", program_.options.batch * graph_.value(node.output).shape.elements());
  kept.winner[node.leader.at()] = winner;
  pool.at(Role::Winner) = winner;
}

void Compiler::forward_node(const Node& node, Phase phase, bool repeated, ForwardBuffers& kept) {
  const Op& op = graph_.op(node.leader);
  if (is_norm(op)) return forward_norm(node, phase, repeated, kept);
  if (is_weighted(op)) return forward_weighted(node, phase, kept);
  if (is<models::Concat>(op)) return forward_concat(node, phase, kept);
  if (is<models::ScaleChannels>(op)) return forward_scale(node, phase, kept);
  if (drops(op)) return forward_drop(node, phase, kept);
  if (is<models::Pool>(op)) return forward_pool(node, phase, kept);
  if (is<models::SoftmaxLoss>(op)) {
    if (!repeated) forward_loss(node, phase, kept);
    return;
  }
  const KernelKind kind = is<models::Activation>(op)          ? KernelKind::ActivationForward
                          : is<models::Add>(op)               ? KernelKind::AddForward
                          : is<models::GlobalAveragePool>(op) ? KernelKind::GlobalPoolForward
                                                              : KernelKind::ShortcutForward;
  const BufferId x = kept.activation[node.input.at()];
  const BufferId y = make_output(node, kept);
  Call& call = emit(phase, kind, node.leader, {{Role::X, x}, {Role::Y, y}});
  call.fn = node.fn;
  if (const auto* activation = std::get_if<models::Activation>(&op.kind)) {
    call.fn = fused(activation->kind);
  }
  if (node.skip.valid()) call.at(Role::Skip) = kept.activation[node.skip.at()];
}

/// Removes calls of the recomputation, [0, first_kept) of BackwardInput, whose results are not
/// read.
void Compiler::remove_unread(std::size_t first_kept) {
  auto& list = program_.calls[static_cast<std::size_t>(Phase::BackwardInput)];
  std::vector<bool> read(program_.buffers.size(), false);
  const auto mark = [&](const Call& call) {
    for (const BufferId b : call.buffers) {
      if (b.valid()) read[b.at()] = true;
    }
  };
  for (const Call& call : program_.phase(Phase::BackwardWeight)) mark(call);
  std::vector<bool> keep(list.size(), true);
  for (std::size_t i = list.size(); i-- > 0;) {
    const Call& call = list[i];
    const auto result_is_read = [&](Role role) {
      return call.has(role) && read[call.at(role).at()];
    };
    keep[i] = i >= first_kept || result_is_read(Role::Y) || result_is_read(Role::Winner) ||
              (call.kind == KernelKind::NormStatistics && result_is_read(Role::Statistics));
    if (keep[i]) mark(call);
  }
  std::size_t i = 0;
  std::erase_if(list, [&](const Call&) { return !keep[i++]; });
}

// ---- backward -----------------------------------------------------------------------------------

void Compiler::contribute(ValueId value, OpId reader, BufferId buffer) {
  if (!wants_gradient(value)) return;
  contributions_[value.at()].push_back({reader, buffer});
  ++pending_[buffer.at()];
}

/// The gradient of `value` as at most `at_most` buffers, of which it is the rounded sum. The
/// buffers are released; the caller must read them in the next call that it emits.
std::vector<BufferId> Compiler::take_gradients(ValueId value, std::size_t at_most) {
  std::vector<Contribution>& list = contributions_[value.at()];
  MILLRACE_ASSERT(!list.empty());
  std::sort(list.begin(), list.end(),
            [](const Contribution& a, const Contribution& b) { return a.reader > b.reader; });
  std::vector<BufferId> buffers;
  buffers.reserve(list.size());
  for (const Contribution& c : list) buffers.push_back(c.buffer);
  while (buffers.size() > at_most) {
    const BufferId a = buffers[0];
    const BufferId b = buffers[1];
    const BufferId sum = reusable(a, 1) ? a : reusable(b, 1) ? b : make_gradient(value);
    emit(Phase::BackwardInput, KernelKind::AddGradients, graph_.value(value).producer,
         {{Role::Dy, a}, {Role::Dy2, b}, {Role::Dz, sum}});
    release(a);
    release(b);
    ++pending_[sum.at()];
    buffers.erase(buffers.begin());
    buffers.front() = sum;
  }
  for (const BufferId b : buffers) release(b);
  return buffers;
}

/// A buffer for the gradient of `value`: `in_place` if nothing else needs it any more.
BufferId Compiler::output_gradient(ValueId value, BufferId in_place) {
  if (reusable(in_place, 0) && program_.buffer(in_place).bytes == activation_bytes(value)) {
    return in_place;
  }
  return make_gradient(value);
}

/// A buffer for the gradient before an addition, or for the sum of two contributions; in place of
/// one of them if possible.
BufferId Compiler::joined_gradient(const Node& node, std::span<const BufferId> dy) {
  const auto free = std::find_if(dy.begin(), dy.end(), [&](BufferId b) { return reusable(b, 0); });
  return free != dy.end() ? *free : make_gradient(node.output);
}

void Compiler::backward_norm(const Node& node) {
  const OpId norm = node.leader;
  const bool learns = models::learns(graph_, norm);
  if (!learns && !wants_gradient(node.input)) {
    // Norm fused with an addition: only the addition's other operand needs its gradient.
    contribute(node.skip, node.adder, undo_fused(node, take_gradient(node.output)));
    return;
  }
  const std::vector<BufferId> dy = take_gradients(node.output, 2);
  const bool two = dy.size() == 2;
  const BufferId x = kept_.activation[node.input.at()];
  const BufferId statistics = kept_.statistics[norm.at()];
  const auto floats = static_cast<std::int64_t>(sizeof(float));
  const BufferId sums = make_buffer("d " + op_name(norm), 2 * channels(norm) * floats);
  const BufferId coefficients =
      make_buffer(op_name(norm) + " coefficients", 3 * instances(norm) * channels(norm) * floats);
  const bool spans = spans_replicas(norm);

  const BufferId dz = node.skip.valid() || two ? joined_gradient(node, dy) : BufferId{};
  Call& reduce = emit(
      Phase::BackwardInput, spans ? KernelKind::NormBackwardSums : KernelKind::NormBackwardReduce,
      norm,
      {{Role::Dy, dy[0]},
       {Role::X, x},
       {Role::Statistics, statistics},
       {Role::Dz, dz},
       {Role::Sums, sums},
       {spans ? Role::Exchange : Role::Coefficients, spans ? make_exchange(norm) : coefficients}});
  reduce.fn = node.fn;
  const BufferId exchange = reduce.at(Role::Exchange);
  if (two) reduce.at(Role::Dy2) = dy[1];
  if (node.skip.valid()) {
    reduce.with_skip = true;
    if (node.fn != FusedFn::None) {
      reduce.at(Role::Y) = kept_.activation[node.output.at()];
    }
    contribute(node.skip, node.adder, dz);
  }
  if (learns) emit(weight_phase(), KernelKind::NormBackwardWeight, norm, {{Role::Sums, sums}});
  if (!wants_gradient(node.input)) return;

  if (spans)
    emit(Phase::BackwardInput, KernelKind::NormJoinSums, norm,
         {{Role::Exchange, exchange},
          {Role::Statistics, statistics},
          {Role::Coefficients, coefficients}});
  const BufferId source = dz.valid() ? dz : dy[0];
  const BufferId dx = output_gradient(node.input, source);
  Call& apply = emit(Phase::BackwardInput, KernelKind::NormBackwardApply, norm,
                     {{Role::Dy, source},
                      {Role::X, x},
                      {Role::Statistics, statistics},
                      {Role::Coefficients, coefficients},
                      {Role::Dx, dx}});
  apply.fn = dz.valid() ? FusedFn::None : node.fn;
  contribute(node.input, norm, dx);
}

/// The gradient before the activation that is fused at the node's end. It is computed from the
/// activation's output.
BufferId Compiler::undo_fused(const Node& node, BufferId dy) {
  if (node.fn == FusedFn::None) return dy;
  const BufferId dz = output_gradient(node.output, dy);
  emit(Phase::BackwardInput, KernelKind::ActivationBackward, node.last,
       {{Role::Dy, dy}, {Role::Y, kept_.activation[node.output.at()]}, {Role::Dx, dz}})
      .fn = node.fn;
  return dz;
}

void Compiler::backward_weighted(const Node& node) {
  const BufferId dy = undo_fused(node, take_gradient(node.output));
  const BufferId x = kept_.activation[node.input.at()];
  if (models::learns(graph_, node.leader)) {
    emit(weight_phase(), KernelKind::WeightedBackwardWeight, node.leader,
         {{Role::Dy, dy}, {Role::X, x}});
    if (program_.options.backward == Backward::Split) read_later_[dy.at()] = true;
  }
  if (!wants_gradient(node.input)) return;
  const BufferId dx = make_gradient(node.input);
  emit(Phase::BackwardInput, KernelKind::WeightedBackwardInput, node.leader,
       {{Role::Dy, dy}, {Role::Dx, dx}});
  contribute(node.input, node.leader, dx);
}

void Compiler::backward_add(const Node& node) {
  const BufferId dz = undo_fused(node, take_gradient(node.output));
  contribute(node.input, node.leader, dz);
  contribute(node.skip, node.adder, dz);
}

void Compiler::backward_activation(const Node& node) {
  if (!wants_gradient(node.input)) return;
  const Op& op = graph_.op(node.leader);
  const FusedFn fn = fused(std::get<models::Activation>(op.kind).kind);
  const BufferId dy = take_gradient(node.output);
  const BufferId dx = output_gradient(node.input, dy);
  Call& call = emit(Phase::BackwardInput, KernelKind::ActivationBackward, node.leader,
                    {{Role::Dy, dy}, {Role::Dx, dx}});
  call.fn = fn;
  // ReLU needs its output, which is stored for the next op anyway; the others need their input.
  const bool by_output = fn == FusedFn::Relu;
  call.at(by_output ? Role::Y : Role::X) =
      kept_.activation[by_output ? node.output.at() : node.input.at()];
  contribute(node.input, node.leader, dx);
}

void Compiler::backward_concat(const Node& node) {
  const BufferId dy = take_gradient(node.output);
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    const Node::Part& part = node.parts[i];
    if (!wants_gradient(part.input)) continue;
    const BufferId dx = make_gradient(part.input);
    Call& call = emit(Phase::BackwardInput, KernelKind::ConcatBackward, node.leader,
                      {{Role::Dy, dy}, {Role::Dx, dx}});
    call.part = static_cast<std::int32_t>(i);
    call.fn = part.fn;
    if (part.fn != FusedFn::None) call.at(Role::Y) = kept_.activation[node.output.at()];
    contribute(part.input, part.reader, dx);
  }
}

void Compiler::backward_scale(const Node& node) {
  const ValueId scale = graph_.op(node.leader).inputs[1];
  const BufferId dz = undo_fused(node, take_gradient(node.output));
  if (node.skip.valid()) contribute(node.skip, node.adder, dz);
  if (!wants_gradient(node.input) && !wants_gradient(scale)) return;
  const BufferId dx = output_gradient(node.input, dz);
  const BufferId dscale = make_gradient(scale);
  emit(Phase::BackwardInput, KernelKind::ScaleBackward, node.leader,
       {{Role::Dy, dz},
        {Role::X, kept_.activation[node.input.at()]},
        {Role::Scale, kept_.activation[scale.at()]},
        {Role::Dx, dx},
        {Role::Dscale, dscale}});
  contribute(node.input, node.leader, dx);
  contribute(scale, node.leader, dscale);
}

void Compiler::backward_drop(const Node& node) {
  const bool elements = is<models::Dropout>(graph_.op(node.leader));
  const BufferId dy = take_gradient(node.output);
  if (node.skip.valid()) contribute(node.skip, node.adder, dy);
  if (!wants_gradient(node.input)) return;
  const BufferId dx = output_gradient(node.input, dy);
  emit(Phase::BackwardInput,
       elements ? KernelKind::DropoutBackward : KernelKind::DropConnectBackward, node.leader,
       {{Role::Dy, dy}, {Role::Dx, dx}});
  contribute(node.input, node.leader, dx);
}

/// Ops with one input whose backward is one call.
void Compiler::backward_simple(const Node& node) {
  const Op& op = graph_.op(node.leader);
  if (!wants_gradient(node.input)) return;
  if (is<models::SoftmaxLoss>(op)) {
    const BufferId dx = make_gradient(node.input);
    emit(Phase::BackwardInput, KernelKind::LossBackward, node.leader,
         {{Role::X, kept_.activation[node.input.at()]},
          {Role::Labels, program_.labels},
          {Role::Mixing, mixing_buffer()},
          {Role::Dx, dx}});
    contribute(node.input, node.leader, dx);
    return;
  }
  const BufferId dy = take_gradient(node.output);
  const KernelKind kind = is<models::Pool>(op)                ? KernelKind::PoolBackward
                          : is<models::GlobalAveragePool>(op) ? KernelKind::GlobalPoolBackward
                                                              : KernelKind::ShortcutBackward;
  const BufferId dx = make_gradient(node.input);
  Call& call = emit(Phase::BackwardInput, kind, node.leader, {{Role::Dy, dy}, {Role::Dx, dx}});
  call.at(Role::Winner) = kept_.winner[node.leader.at()];
  contribute(node.input, node.leader, dx);
}

void Compiler::backward_node(const Node& node) {
  const Op& op = graph_.op(node.leader);
  if (node.output.valid() && !wants_gradient(node.output)) return;
  if (is_norm(op)) return backward_norm(node);
  if (is_weighted(op)) return backward_weighted(node);
  if (is<models::Add>(op)) return backward_add(node);
  if (is<models::Activation>(op)) return backward_activation(node);
  if (is<models::Concat>(op)) return backward_concat(node);
  if (is<models::ScaleChannels>(op)) return backward_scale(node);
  if (drops(op)) return backward_drop(node);
  backward_simple(node);
}

void Compiler::backward() {
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) backward_node(*node);
  for (Crossing& input : program_.inputs) {
    if (wants_gradient(input.value)) input.gradient = take_gradient(input.value);
  }
}

StageProgram Compiler::run() && {
  make_crossings();
  prepare_images(Phase::Forward, kept_);
  forward(Phase::Forward, false, kept_);
  for (Crossing& output : program_.outputs) {
    if (program_.range.contains(graph_.value(output.value).producer)) {
      const BufferId own = kept_.activation[output.value.at()];
      output.activation = own.valid() ? own : kept_.activation[grouping_.source(output.value).at()];
    }
  }
  if (!training()) return std::move(program_);
  std::size_t repeated_calls = 0;
  if (program_.options.recompute != Recompute::None) {
    ForwardBuffers again = kept_;
    if (recomputes_images()) prepare_images(Phase::BackwardInput, again);
    for (const Node& node : nodes_) {
      if (is_recomputed(node)) forward_node(node, Phase::BackwardInput, true, again);
    }
    repeated_calls = program_.phase(Phase::BackwardInput).size();
    kept_ = std::move(again);
  }
  backward();
  if (repeated_calls > 0) remove_unread(repeated_calls);
  return std::move(program_);
}

}  // namespace

OpRange whole(const Graph& graph) { return {0, static_cast<std::int32_t>(graph.ops.size())}; }

bool names_layer(std::span<const std::string> names, std::string_view layer) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return layer == name || (layer.starts_with(name) && layer.substr(name.size()).starts_with('/'));
  });
}

std::int64_t span_of(const Graph& graph) {
  const Op* first = nullptr;
  const auto span = [](const Op& op) { return std::get<models::BatchNorm>(op.kind).span; };
  for (const Op& op : graph.ops) {
    if (!is<models::BatchNorm>(op)) continue;
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

std::string_view name_of(KernelKind kind) {
  constexpr std::array<std::string_view, 34> kNames = {"WeightedForward",
                                                       "WeightedBackwardInput",
                                                       "WeightedBackwardWeight",
                                                       "NormStatistics",
                                                       "NormMoments",
                                                       "NormJoinMoments",
                                                       "NormRunning",
                                                       "NormApply",
                                                       "NormBackwardReduce",
                                                       "NormBackwardSums",
                                                       "NormJoinSums",
                                                       "NormBackwardApply",
                                                       "NormBackwardWeight",
                                                       "ActivationForward",
                                                       "ActivationBackward",
                                                       "AddForward",
                                                       "AddGradients",
                                                       "PoolForward",
                                                       "PoolBackward",
                                                       "GlobalPoolForward",
                                                       "GlobalPoolBackward",
                                                       "ShortcutForward",
                                                       "ShortcutBackward",
                                                       "LossForward",
                                                       "LossBackward",
                                                       "ConcatForward",
                                                       "ConcatBackward",
                                                       "ScaleForward",
                                                       "ScaleBackward",
                                                       "DropoutForward",
                                                       "DropoutBackward",
                                                       "DropConnectForward",
                                                       "DropConnectBackward",
                                                       "PrepareImages"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(Role role) {
  constexpr std::array<std::string_view, kRoles> kNames = {
      "x",          "skip",         "y",       "dy",     "dy2",     "dz",   "dx",
      "statistics", "coefficients", "sums",    "winner", "labels",  "loss", "rank",
      "scale",      "dscale",       "scaling", "mixing", "exchange"};
  return kNames.at(static_cast<std::size_t>(role));
}

std::string to_string(const StageProgram& program, const Graph& graph) {
  constexpr std::array<std::string_view, kPhases> kPhaseNames = {"F", "I", "W"};
  std::string text;
  for (std::size_t p = 0; p < kPhases; ++p) {
    for (const Call& call : program.calls[p]) {
      text += fmt::format("{} {:<22} {:<20}", kPhaseNames[p], name_of(call.kind),
                          graph.op(call.op).name);
      for (std::size_t r = 0; r < kRoles; ++r) {
        if (!call.buffers[r].valid()) continue;
        text += fmt::format(" {}={}:{}", name_of(static_cast<Role>(r)), call.buffers[r].value,
                            program.buffer(call.buffers[r]).name);
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace millrace::pipeline
