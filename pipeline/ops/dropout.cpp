// SPDX-License-Identifier: Apache-2.0
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

/// In evaluation a copy, if the op was not left out at all.
template <KernelKind kKind>
void forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  forward_call(compiler, node, pass, compiler.training() ? kKind : KernelKind::ActivationForward);
}

template <KernelKind kKind>
void backward(Compiler& compiler, const Node& node) {
  const BufferId dy = compiler.take_gradient(node.output);
  if (node.skip.valid()) compiler.contribute(node.skip, node.adder, dy);
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dx = compiler.output_gradient(node.input, dy);
  compiler.emit(Phase::BackwardInput, kKind, node.leader, {{Role::Dy, dy}, {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
}

}  // namespace

Lowering lowering(const models::Dropout&) {
  return {.training_only = true,
          .forward = forward<KernelKind::DropoutForward>,
          .backward = backward<KernelKind::DropoutBackward>};
}
Lowering lowering(const models::DropConnect&) {
  return {.fusion = {.addition = true},
          .training_only = true,
          .forward = forward<KernelKind::DropConnectForward>,
          .backward = backward<KernelKind::DropConnectBackward>};
}

}  // namespace millrace::pipeline
