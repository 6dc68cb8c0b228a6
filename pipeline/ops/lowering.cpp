// SPDX-License-Identifier: Apache-2.0
//
// The lowerings of all ops but norms.
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

/// The forward pass of an op with one input and one kernel: X, [Skip] -> Y.
Call& forward_call(Compiler& compiler, const Node& node, ForwardPass& pass, KernelKind kind) {
  const BufferId y = compiler.make_output(node, pass);
  Call& call = compiler.emit(pass.phase, kind, node.leader,
                             {{Role::X, pass.kept.of(node.input)}, {Role::Y, y}});
  call.fn = node.fn;
  if (node.skip.valid()) call.at(Role::Skip) = pass.kept.of(node.skip);
  return call;
}

/// The backward pass of an op with one input and one kernel, Dy -> Dx, whose input wants a
/// gradient.
Call& backward_call(Compiler& compiler, const Node& node, KernelKind kind, BufferId dy,
                    BufferId dx) {
  Call& call =
      compiler.emit(Phase::BackwardInput, kind, node.leader, {{Role::Dy, dy}, {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
  return call;
}

/// Lets a call that was to read `value` from X compute it, if its norm is inlined.
void read_inlined(const Compiler& compiler, const ForwardBuffers& kept, ValueId value, Call& call) {
  const Node* const norm = compiler.inlined_norm(value);
  if (norm == nullptr) return;
  call.inlined = norm->leader;
  call.fn = norm->fn;
  call.at(Role::X) = kept.of(norm->input);
  call.at(Role::Statistics) = kept.statistics[norm->leader.at()];
}

/// The forward and backward pass of an op whose gradient depends on nothing but Dy.
template <KernelKind kKind>
void simple_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  forward_call(compiler, node, pass, kKind);
}
template <KernelKind kKind>
void simple_backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dy = compiler.take_gradient(node.output);
  backward_call(compiler, node, kKind, dy, compiler.make_gradient(node.input));
}

/// A ReLU works in place: its gradient needs only the output, and no other op reads its input.
void linear_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  const BufferId x = pass.kept.of(node.input);
  const BufferId y = compiler.make_output(node, pass);
  compiler.emit(pass.phase, KernelKind::LinearForward, node.leader, {{Role::X, x}, {Role::Y, y}});
  if (node.fn == Activation::None) return;
  compiler.emit(pass.phase, KernelKind::ActivationForward, node.last, {{Role::X, y}, {Role::Y, y}})
      .fn = node.fn;
}

void linear_backward(Compiler& compiler, const Node& node) {
  const BufferId dy = compiler.undo_fused(node, compiler.take_gradient(node.output));
  if (models::learns(compiler.graph(), node.leader)) {
    compiler.emit(compiler.weight_phase(), KernelKind::LinearBackwardWeight, node.leader,
                  {{Role::Dy, dy}, {Role::X, compiler.kept().of(node.input)}});
    compiler.keep_for_weights(dy);
  }
  if (!compiler.wants_gradient(node.input)) return;
  backward_call(compiler, node, KernelKind::LinearBackwardInput, dy,
                compiler.make_gradient(node.input));
}

constexpr Lowering kLinear = {
    .fusion = {.activation = FusedActivation::Relu, .separate_kernel = true},
    .forward = linear_forward,
    .backward = linear_backward};

void activation_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  forward_call(compiler, node, pass, KernelKind::ActivationForward).fn =
      compiler.kind_of<models::Activate>(node).kind;
}

void activation_backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const Activation fn = compiler.kind_of<models::Activate>(node).kind;
  const BufferId dy = compiler.take_gradient(node.output);
  Call& call = backward_call(compiler, node, KernelKind::ActivationBackward, dy,
                             compiler.output_gradient(node.input, dy));
  call.fn = fn;
  // The output is stored for the next op anyway.
  const bool by_output = has_gradient_by_output(fn);
  call.at(by_output ? Role::Y : Role::X) = compiler.kept().of(by_output ? node.output : node.input);
}

void add_backward(Compiler& compiler, const Node& node) {
  const BufferId dz = compiler.undo_fused(node, compiler.take_gradient(node.output));
  compiler.contribute(node.input, node.leader, dz);
  compiler.contribute(node.skip, node.adder, dz);
}

/// In evaluation a copy, if the op was not left out at all.
template <KernelKind kKind>
void drop_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  forward_call(compiler, node, pass, compiler.training() ? kKind : KernelKind::ActivationForward);
}

template <KernelKind kKind>
void drop_backward(Compiler& compiler, const Node& node) {
  const BufferId dy = compiler.take_gradient(node.output);
  if (node.skip.valid()) compiler.contribute(node.skip, node.adder, dy);
  if (!compiler.wants_gradient(node.input)) return;
  backward_call(compiler, node, kKind, dy, compiler.output_gradient(node.input, dy));
}

void pool_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  Call& call = forward_call(compiler, node, pass, KernelKind::PoolForward);
  const auto& pool = compiler.kind_of<models::Pool>(node);
  if (pool.kind != models::PoolKind::Max) return;
  read_inlined(compiler, pass.kept, node.input, call);
  if (!compiler.training()) return;
  const std::int64_t elements = compiler.graph().value(node.output).shape.elements();
  const BufferId winner = compiler.make_buffer(compiler.op_name(node.leader) + " winner",
                                               compiler.batch() * elements * pool.position_bytes());
  pass.kept.winner[node.leader.at()] = winner;
  call.at(Role::Winner) = winner;
}

void pool_backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dy = compiler.take_gradient(node.output);
  backward_call(compiler, node, KernelKind::PoolBackward, dy, compiler.make_gradient(node.input))
      .at(Role::Winner) = compiler.kept().winner[node.leader.at()];
}

void concat_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  const BufferId y = compiler.make_output(node, pass);
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    const Node::Part& part = node.parts[i];
    Call& call = compiler.emit(pass.phase, KernelKind::ConcatForward, node.leader,
                               {{Role::X, pass.kept.of(part.input)}, {Role::Y, y}});
    call.part = static_cast<std::int32_t>(i);
    call.fn = part.fn;
  }
}

void concat_backward(Compiler& compiler, const Node& node) {
  const BufferId dy = compiler.take_gradient(node.output);
  for (std::size_t i = 0; i < node.parts.size(); ++i) {
    const Node::Part& part = node.parts[i];
    if (!compiler.wants_gradient(part.input)) continue;
    const BufferId dx = compiler.make_gradient(part.input);
    Call& call = compiler.emit(Phase::BackwardInput, KernelKind::ConcatBackward, node.leader,
                               {{Role::Dy, dy}, {Role::Dx, dx}});
    call.part = static_cast<std::int32_t>(i);
    call.fn = part.fn;
    if (part.fn != Activation::None) call.at(Role::Y) = compiler.kept().of(node.output);
    compiler.contribute(part.input, part.reader, dx);
  }
}

void average_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  read_inlined(compiler, pass.kept, node.input,
               forward_call(compiler, node, pass, KernelKind::GlobalPoolForward));
}

/// The gradient of an inlined norm's output is left to the norm: here its part is that of the
/// means.
void average_backward(Compiler& compiler, const Node& node) {
  if (compiler.inlined_norm(node.input) == nullptr)
    return simple_backward<KernelKind::GlobalPoolBackward>(compiler, node);
  if (compiler.wants_gradient(node.input))
    compiler.contribute(node.input, node.leader, compiler.take_gradient(node.output));
}

ValueId scale_of(const Compiler& compiler, const Node& node) {
  return compiler.graph().op(node.leader).inputs[1];
}

void scale_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  Call& call = forward_call(compiler, node, pass, KernelKind::ScaleForward);
  call.at(Role::Scale) = pass.kept.of(compiler.source(scale_of(compiler, node)));
  read_inlined(compiler, pass.kept, node.input, call);
}

void scale_backward(Compiler& compiler, const Node& node) {
  const ValueId scale = scale_of(compiler, node);
  const BufferId dz = compiler.undo_fused(node, compiler.take_gradient(node.output));
  if (node.skip.valid()) compiler.contribute(node.skip, node.adder, dz);
  if (!compiler.wants_gradient(node.input) && !compiler.wants_gradient(scale)) return;
  const bool inlined = compiler.inlined_norm(node.input) != nullptr;
  const BufferId dx = inlined ? BufferId{} : compiler.output_gradient(node.input, dz);
  const BufferId dscale = compiler.make_gradient(scale);
  Call& call = compiler.emit(Phase::BackwardInput, KernelKind::ScaleBackward, node.leader,
                             {{Role::Dy, dz},
                              {Role::X, compiler.kept().of(node.input)},
                              {Role::Scale, inlined ? BufferId{} : compiler.kept().of(scale)},
                              {Role::Dx, dx},
                              {Role::Dscale, dscale}});
  read_inlined(compiler, compiler.kept(), node.input, call);
  compiler.contribute(node.input, node.leader, inlined ? dz : dx);
  compiler.contribute(scale, node.leader, dscale);
}

void loss_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  if (pass.repeated) return;
  const std::int64_t bytes = compiler.batch() * static_cast<std::int64_t>(sizeof(float));
  StageProgram& program = compiler.program();
  program.labels = compiler.make_buffer("labels", bytes);
  if (program.options.weighted) program.weights = compiler.make_buffer("weights", bytes);
  program.loss = compiler.make_buffer("loss", bytes);
  program.rank = compiler.make_buffer("rank", bytes);
  compiler.emit(pass.phase, KernelKind::LossForward, node.leader,
                {{Role::X, pass.kept.of(node.input)},
                 {Role::Labels, program.labels},
                 {Role::Weights, program.weights},
                 {Role::Loss, program.loss},
                 {Role::Rank, program.rank},
                 {Role::Mixing, compiler.mixing_buffer()}});
}

void loss_backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dx = compiler.make_gradient(node.input);
  compiler.emit(Phase::BackwardInput, KernelKind::LossBackward, node.leader,
                {{Role::X, compiler.kept().of(node.input)},
                 {Role::Labels, compiler.program().labels},
                 {Role::Weights, compiler.program().weights},
                 {Role::Mixing, compiler.mixing_buffer()},
                 {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
}

}  // namespace

Lowering lowering(const models::Concat&) {
  return {.fusion = {.joins_inputs = true}, .forward = concat_forward, .backward = concat_backward};
}
Lowering lowering(const models::ScaleChannels&) {
  return {.fusion = {.addition = true, .relu_of_sum = true},
          .forward = scale_forward,
          .backward = scale_backward};
}
Lowering lowering(const models::Conv&) { return kLinear; }
Lowering lowering(const models::Dense&) { return kLinear; }
Lowering lowering(const models::Pool&) {
  return {.forward = pool_forward, .backward = pool_backward};
}
Lowering lowering(const models::GlobalAveragePool&) {
  return {.forward = average_forward, .backward = average_backward};
}
Lowering lowering(const models::ShortcutPad&) {
  return {.forward = simple_forward<KernelKind::ShortcutForward>,
          .backward = simple_backward<KernelKind::ShortcutBackward>};
}
Lowering lowering(const models::Activate&) {
  return {.forward = activation_forward, .backward = activation_backward};
}
Lowering lowering(const models::Add&) {
  return {.fusion = {.relu_of_sum = true, .adds_inputs = true},
          .forward = simple_forward<KernelKind::AddForward>,
          .backward = add_backward};
}
Lowering lowering(const models::Dropout&) {
  return {.training_only = true,
          .forward = drop_forward<KernelKind::DropoutForward>,
          .backward = drop_backward<KernelKind::DropoutBackward>};
}
Lowering lowering(const models::DropConnect&) {
  return {.fusion = {.addition = true},
          .training_only = true,
          .forward = drop_forward<KernelKind::DropConnectForward>,
          .backward = drop_backward<KernelKind::DropConnectBackward>};
}
Lowering lowering(const models::SoftmaxLoss&) {
  return {.forward = loss_forward, .backward = loss_backward};
}

}  // namespace millrace::pipeline
