// SPDX-License-Identifier: Apache-2.0
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

/// A ReLU works in place: its gradient needs only the output, and no other op reads its input.
void forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  const BufferId x = pass.kept.of(node.input);
  const BufferId y = compiler.make_output(node, pass);
  compiler.emit(pass.phase, KernelKind::LinearForward, node.leader, {{Role::X, x}, {Role::Y, y}});
  if (node.fn == Activation::None) return;
  compiler.emit(pass.phase, KernelKind::ActivationForward, node.last, {{Role::X, y}, {Role::Y, y}})
      .fn = node.fn;
}

void backward(Compiler& compiler, const Node& node) {
  const BufferId dy = compiler.undo_fused(node, compiler.take_gradient(node.output));
  if (models::learns(compiler.graph(), node.leader)) {
    compiler.emit(compiler.weight_phase(), KernelKind::LinearBackwardWeight, node.leader,
                  {{Role::Dy, dy}, {Role::X, compiler.kept().of(node.input)}});
    compiler.keep_for_weights(dy);
  }
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dx = compiler.make_gradient(node.input);
  compiler.emit(Phase::BackwardInput, KernelKind::LinearBackwardInput, node.leader,
                {{Role::Dy, dy}, {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
}

constexpr Lowering kLinear = {
    .fusion = {.activation = FusedActivation::Relu, .separate_kernel = true},
    .forward = forward,
    .backward = backward};

}  // namespace

Lowering lowering(const models::Conv&) { return kLinear; }
Lowering lowering(const models::Dense&) { return kLinear; }

}  // namespace millrace::pipeline
