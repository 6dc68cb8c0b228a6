// SPDX-License-Identifier: Apache-2.0
//
// Pools, global pools and shortcuts.
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

void pool_forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  Call& call = forward_call(compiler, node, pass, KernelKind::PoolForward);
  if (!compiler.training()) return;
  const auto& pool = compiler.kind_of<models::Pool>(node);
  if (pool.kind != models::PoolKind::Max) return;
  const std::int64_t elements = compiler.graph().value(node.output).shape.elements();
  const BufferId winner = compiler.make_buffer(compiler.op_name(node.leader) + " winner",
                                               compiler.batch() * elements * pool.position_bytes());
  pass.kept.winner[node.leader.at()] = winner;
  call.at(Role::Winner) = winner;
}

void pool_backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dy = compiler.take_gradient(node.output);
  const BufferId dx = compiler.make_gradient(node.input);
  compiler.emit(
      Phase::BackwardInput, KernelKind::PoolBackward, node.leader,
      {{Role::Dy, dy}, {Role::Winner, compiler.kept().winner[node.leader.at()]}, {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
}

}  // namespace

Lowering lowering(const models::Pool&) {
  return {.forward = pool_forward, .backward = pool_backward};
}
Lowering lowering(const models::GlobalAveragePool&) {
  return {.forward = simple_forward<KernelKind::GlobalPoolForward>,
          .backward = simple_backward<KernelKind::GlobalPoolBackward>};
}
Lowering lowering(const models::ShortcutPad&) {
  return {.forward = simple_forward<KernelKind::ShortcutForward>,
          .backward = simple_backward<KernelKind::ShortcutBackward>};
}

}  // namespace millrace::pipeline
