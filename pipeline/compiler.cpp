// SPDX-License-Identifier: Apache-2.0
#include "pipeline/compiler.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/image_records.hpp"
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {

Compiler::Compiler(const Graph& graph, OpRange range, const ProgramOptions& options)
    : graph_(graph),
      grouping_(graph, range, options),
      nodes_(grouping_.nodes()),
      wanted_(models::wanted_gradients(graph)) {
  program_.range = range;
  program_.options = options;
}

StageProgram Compiler::run() && {
  make_crossings();
  ForwardPass pass{Phase::Forward, false, kept_};
  prepare_images(pass);
  for (const Node& node : nodes_) lowering_of(graph_.op(node.leader)).forward(*this, node, pass);
  for (Crossing& output : program_.outputs) {
    if (program_.range.contains(graph_.value(output.value).producer)) {
      const BufferId own = kept_.of(output.value);
      output.activation = own.valid() ? own : kept_.of(grouping_.source(output.value));
    }
  }
  if (!training()) return std::move(program_);
  make_segments();
  backward();
  remove_unread();
  return std::move(program_);
}

// ---- buffers ------------------------------------------------------------------------------------

std::int64_t Compiler::activation_bytes(ValueId v) const {
  return batch() * graph_.value(v).shape.elements() * size_of(program_.options.type);
}

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

BufferId Compiler::make_output(const Node& node, ForwardPass& pass) {
  const BufferId y = make_buffer(op_name(node.last), activation_bytes(node.output));
  pass.kept.activation[node.output.at()] = y;
  return y;
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

const Node* Compiler::inlined_norm(ValueId value) const {
  if (!program_.options.saves_traffic) return nullptr;
  const Node* norm = nullptr;
  bool pooled = false;
  bool averaged = false;
  bool scaled = false;
  for (const Node& node : nodes_) {
    const models::Op& op = graph_.op(node.leader);
    if (node.output == value && models::is_norm(op.kind) && !node.skip.valid()) norm = &node;
    if (op.inputs.front() != value) continue;
    const auto* pool = std::get_if<models::Pool>(&op.kind);
    pooled = pooled || (pool != nullptr && pool->kind == models::PoolKind::Max);
    averaged = averaged || std::holds_alternative<models::GlobalAveragePool>(op.kind);
    scaled =
        scaled || (std::holds_alternative<models::ScaleChannels>(op.kind) && !node.skip.valid());
  }
  constexpr std::int64_t kChannels = 8;  // a thread's
  if (norm == nullptr || graph_.value(value).shape.c % kChannels != 0) return nullptr;
  const std::size_t readers = grouping_.readers(value).size();
  const bool inlined =
      readers == 1 ? pooled && norm->fn == Activation::Relu : readers == 2 && averaged && scaled;
  return inlined ? norm : nullptr;
}

void Compiler::make_crossings() {
  const OpRange range = program_.range;
  kept_.activation.resize(graph_.values.size());
  kept_.statistics.resize(graph_.ops.size());
  kept_.winner.resize(graph_.ops.size());
  kept_.mask.resize(graph_.ops.size());
  contributions_.resize(graph_.values.size());
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    const ValueId v{static_cast<std::int32_t>(i)};
    const OpId producer = graph_.value(v).producer;
    const bool made_before = !producer.valid() || producer.value < range.first;
    const bool read_here = grouping_.read_here(v);
    if (made_before && read_here) {
      const bool prepared =
          !producer.valid() && (prepares_images(program_.options) || graph_.stored_image);
      const std::string name = producer.valid() ? op_name(producer) : "images";
      const BufferId buffer = prepared ? make_arrival() : make_buffer(name, activation_bytes(v));
      kept_.activation[i] = buffer;
      program_.inputs.push_back({v, buffer, BufferId{}});
    }
    const bool passes_gradient = made_before && read_here && training() && wants_gradient(v);
    if (grouping_.read_behind(v) && (range.contains(producer) || passes_gradient)) {
      Crossing out{v, BufferId{}, BufferId{}};
      if (training() && wants_gradient(v)) {
        out.gradient = make_gradient(v);
        contribute(v, OpId{std::numeric_limits<std::int32_t>::max()}, out.gradient);
      }
      program_.outputs.push_back(out);
    }
  }
}

// ---- images -------------------------------------------------------------------------------------

/// The buffer for images that arrive in another form than the network reads.
BufferId Compiler::make_arrival() {
  const DType type = image_type(program_.options);
  if (type == DType::U8)
    program_.scaling =
        make_buffer("scaling", batch() * static_cast<std::int64_t>(sizeof(PixelScaling)));
  arrival_ =
      make_buffer("images that arrive", batch() * graph_.input_shape.elements() * size_of(type));
  return arrival_;
}

BufferId Compiler::mixing_buffer() {
  if (program_.options.mixing && !program_.mixing.valid())
    program_.mixing =
        make_buffer("mixing", batch() * static_cast<std::int64_t>(sizeof(ImageMixing)));
  return program_.mixing;
}

void Compiler::prepare_images(ForwardPass pass) {
  if (!arrival_.valid()) return;
  const Shape stored = graph_.stored_image.value_or(graph_.input_shape);
  const BufferId images =
      make_buffer("images", batch() * stored.elements() * size_of(program_.options.type));
  pass.kept.activation[Graph::input().at()] = images;
  emit(pass.phase, KernelKind::PrepareImages, grouping_.readers(Graph::input()).front(),
       {{Role::X, arrival_},
        {Role::Scaling, program_.scaling},
        {Role::Mixing, mixing_buffer()},
        {Role::Y, images}});
}

// ---- recomputation ------------------------------------------------------------------------------

bool Compiler::names_layer_of(OpId op) const {
  return names_layer(program_.options.recompute_layers,
                     graph_.layers[graph_.op(op).layer.at()].name);
}

/// With recomputation of layers, images are prepared again if the layer that reads them is
/// recomputed.
bool Compiler::recomputes_images() const {
  return program_.options.recompute != Recompute::Layers ||
         names_layer_of(grouping_.readers(Graph::input()).front());
}

/// Fused ops are one kernel, so all of them must be recomputed.
bool Compiler::is_recomputed(const Node& node) const {
  return program_.options.recompute != Recompute::Layers ||
         (names_layer_of(node.leader) && names_layer_of(node.last));
}

void Compiler::make_segments() {
  const ProgramOptions& options = program_.options;
  node_of_.resize(graph_.ops.size());
  auto cut = options.segments.begin();
  OpId segment{program_.range.first};
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    for (const OpId op : {node.leader, node.last, node.adder})
      if (op.valid()) node_of_[op.at()] = n;
    for (const Node::Part& part : node.parts) node_of_[part.reader.at()] = n;
    bool begins = segments_.empty();
    for (; cut != options.segments.end() && *cut <= node.last; ++cut) {
      begins = true;
      segment = *cut;
    }
    const bool kept =
        std::ranges::find(options.kept_segments, segment) != options.kept_segments.end();
    const bool repeated = options.recompute != Recompute::None && !kept && is_recomputed(node);
    begins = begins || segments_.back().repeated != repeated;
    if (begins) segments_.push_back({n, n, repeated});
    segments_.back().last = n + 1;
  }
  if (!options.repeats_last_segment) segments_.back().repeated = false;
}

/// Whether something outside of the segment reads a value that it makes.
bool Compiler::leaves(const Segment& segment, ValueId value) const {
  const std::vector<OpId>& readers = grouping_.readers(value);
  return std::any_of(readers.begin(), readers.end(), [&](OpId reader) {
    if (!program_.range.contains(reader)) return true;
    const std::size_t node = node_of_[reader.at()];
    return node < segment.first || node >= segment.last;
  });
}

/// Emits the forward calls of a segment again. Its backward reads their buffers, and of values that
/// leave the segment those of the forward phase, which are stashed anyway.
void Compiler::repeat(const Segment& segment) {
  ForwardBuffers again = kept_;
  ForwardPass pass{Phase::BackwardInput, true, again};
  const auto nodes = std::span(nodes_).subspan(segment.first, segment.last - segment.first);
  repeated_.resize(program_.phase(Phase::BackwardInput).size());
  const bool reads_images = std::any_of(
      nodes.begin(), nodes.end(), [](const Node& node) { return node.input == Graph::input(); });
  if (reads_images && recomputes_images()) prepare_images(pass);
  for (const Node& node : nodes) {
    lowering_of(graph_.op(node.leader)).forward(*this, node, pass);
    if (node.output.valid() && leaves(segment, node.output)) {
      again.activation[node.output.at()] = kept_.of(node.output);
      again.mask[node.leader.at()] = kept_.mask[node.leader.at()];
    }
  }
  repeated_.resize(program_.phase(Phase::BackwardInput).size(), true);
  kept_ = std::move(again);
}

/// Removes repeated calls whose results are not read.
void Compiler::remove_unread() {
  auto& list = program_.calls[static_cast<std::size_t>(Phase::BackwardInput)];
  repeated_.resize(list.size());
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
    keep[i] = !repeated_[i] || result_is_read(Role::Y) || result_is_read(Role::Winner) ||
              result_is_read(Role::Mask) ||
              (call.kind == KernelKind::NormStatistics && result_is_read(Role::Statistics));
    if (keep[i]) mark(call);
  }
  std::size_t i = 0;
  std::erase_if(list, [&](const Call&) { return !keep[i++]; });
}

// ---- gradients ----------------------------------------------------------------------------------

void Compiler::backward() {
  const ForwardBuffers stashed = kept_;
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    if (segment->repeated) repeat(*segment);
    for (std::size_t n = segment->last; n-- > segment->first;) {
      const Node& node = nodes_[n];
      if (node.output.valid() && !wants_gradient(node.output)) continue;
      lowering_of(graph_.op(node.leader)).backward(*this, node);
    }
    kept_ = stashed;
  }
  for (Crossing& input : program_.inputs) {
    if (wants_gradient(input.value)) input.gradient = take_gradient(input.value);
  }
}

void Compiler::contribute(ValueId value, OpId reader, BufferId buffer) {
  if (!wants_gradient(value)) return;
  contributions_[value.at()].push_back({reader, buffer});
  ++pending_[buffer.at()];
}

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

BufferId Compiler::output_gradient(ValueId value, BufferId in_place) {
  if (reusable(in_place, 0) && program_.buffer(in_place).bytes == activation_bytes(value)) {
    return in_place;
  }
  return make_gradient(value);
}

BufferId Compiler::joined_gradient(const Node& node, std::span<const BufferId> dy) {
  const auto free = std::find_if(dy.begin(), dy.end(), [&](BufferId b) { return reusable(b, 0); });
  return free != dy.end() ? *free : make_gradient(node.output);
}

BufferId Compiler::undo_fused(const Node& node, BufferId dy) {
  if (node.fn == Activation::None) return dy;
  MILLRACE_ASSERT(node.fn == Activation::Relu);  // others need their input
  const BufferId dz = output_gradient(node.output, dy);
  emit(Phase::BackwardInput, KernelKind::ActivationBackward, node.last,
       {{Role::Dy, dy}, {Role::Y, kept_.of(node.output)}, {Role::Dx, dz}})
      .fn = node.fn;
  return dz;
}

// ---- program.hpp --------------------------------------------------------------------------------

bool waits_for_memory() {
#if defined(MILLRACE_WAITS_FOR_MEMORY)
  return true;
#else
  return false;
#endif
}

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
