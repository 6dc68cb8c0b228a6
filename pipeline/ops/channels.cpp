// SPDX-License-Identifier: Apache-2.0
//
// Concatenation, and the scaling of squeeze-and-excite.
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

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

ValueId scale_of(const Compiler& compiler, const Node& node) {
  return compiler.graph().op(node.leader).inputs[1];
}

void scale_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  forward_call(compiler, node, pass, KernelKind::ScaleForward).at(Role::Scale) =
      pass.kept.of(compiler.source(scale_of(compiler, node)));
}

void scale_backward(Compiler& compiler, const Node& node) {
  const ValueId scale = scale_of(compiler, node);
  const BufferId dz = compiler.undo_fused(node, compiler.take_gradient(node.output));
  if (node.skip.valid()) compiler.contribute(node.skip, node.adder, dz);
  if (!compiler.wants_gradient(node.input) && !compiler.wants_gradient(scale)) return;
  const BufferId dx = compiler.output_gradient(node.input, dz);
  const BufferId dscale = compiler.make_gradient(scale);
  compiler.emit(Phase::BackwardInput, KernelKind::ScaleBackward, node.leader,
                {{Role::Dy, dz},
                 {Role::X, compiler.kept().of(node.input)},
                 {Role::Scale, compiler.kept().of(scale)},
                 {Role::Dx, dx},
                 {Role::Dscale, dscale}});
  compiler.contribute(node.input, node.leader, dx);
  compiler.contribute(scale, node.leader, dscale);
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

}  // namespace millrace::pipeline
