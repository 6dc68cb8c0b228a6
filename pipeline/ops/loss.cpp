// SPDX-License-Identifier: Apache-2.0
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

void forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  if (pass.repeated) return;
  const std::int64_t bytes = compiler.batch() * static_cast<std::int64_t>(sizeof(float));
  StageProgram& program = compiler.program();
  program.labels = compiler.make_buffer("labels", bytes);
  program.loss = compiler.make_buffer("loss", bytes);
  program.rank = compiler.make_buffer("rank", bytes);
  compiler.emit(pass.phase, KernelKind::LossForward, node.leader,
                {{Role::X, pass.kept.of(node.input)},
                 {Role::Labels, program.labels},
                 {Role::Loss, program.loss},
                 {Role::Rank, program.rank},
                 {Role::Mixing, compiler.mixing_buffer()}});
}

void backward(Compiler& compiler, const Node& node) {
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId dx = compiler.make_gradient(node.input);
  compiler.emit(Phase::BackwardInput, KernelKind::LossBackward, node.leader,
                {{Role::X, compiler.kept().of(node.input)},
                 {Role::Labels, compiler.program().labels},
                 {Role::Mixing, compiler.mixing_buffer()},
                 {Role::Dx, dx}});
  compiler.contribute(node.input, node.leader, dx);
}

}  // namespace

Lowering lowering(const models::SoftmaxLoss&) { return {.forward = forward, .backward = backward}; }

}  // namespace millrace::pipeline
