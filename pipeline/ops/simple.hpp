// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pipeline/compiler.hpp"

namespace millrace::pipeline {

/// The forward pass of an op with one input and one kernel: X, [Skip] -> Y.
inline Call& forward_call(Compiler& compiler, const Node& node, ForwardPass& pass,
                          KernelKind kind) {
  const BufferId y = compiler.make_output(node, pass);
  Call& call = compiler.emit(pass.phase, kind, node.leader,
                             {{Role::X, pass.kept.of(node.input)}, {Role::Y, y}});
  call.fn = node.fn;
  if (node.skip.valid()) call.at(Role::Skip) = pass.kept.of(node.skip);
  return call;
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
  const BufferId dx = compiler.make_gradient(node.input);
  compiler.emit(Phase::BackwardInput, kKind, node.leader, {{Role::Dy, dy}, {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
}

}  // namespace millrace::pipeline
