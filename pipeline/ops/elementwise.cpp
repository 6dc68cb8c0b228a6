// SPDX-License-Identifier: Apache-2.0
//
// Activations and additions.
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

void activation_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  forward_call(compiler, node, pass, KernelKind::ActivationForward).fn =
      compiler.kind_of<models::Activate>(node).kind;
}

void activation_backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const Activation fn = compiler.kind_of<models::Activate>(node).kind;
  const BufferId dy = compiler.take_gradient(node.output);
  const BufferId dx = compiler.output_gradient(node.input, dy);
  Call& call = compiler.emit(Phase::BackwardInput, KernelKind::ActivationBackward, node.leader,
                             {{Role::Dy, dy}, {Role::Dx, dx}});
  call.fn = fn;
  // The output is stored for the next op anyway.
  const bool by_output = has_gradient_by_output(fn);
  call.at(by_output ? Role::Y : Role::X) = compiler.kept().of(by_output ? node.output : node.input);
  compiler.contribute(node.input, node.leader, dx);
}

void add_backward(Compiler& compiler, const Node& node) {
  const BufferId dz = compiler.undo_fused(node, compiler.take_gradient(node.output));
  compiler.contribute(node.input, node.leader, dz);
  compiler.contribute(node.skip, node.adder, dz);
}

}  // namespace

Lowering lowering(const models::Activate&) {
  return {.forward = activation_forward, .backward = activation_backward};
}
Lowering lowering(const models::Add&) {
  return {.fusion = {.relu_of_sum = true, .adds_inputs = true},
          .forward = simple_forward<KernelKind::AddForward>,
          .backward = add_backward};
}

}  // namespace millrace::pipeline
