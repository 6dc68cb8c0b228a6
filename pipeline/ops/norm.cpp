// SPDX-License-Identifier: Apache-2.0
#include "pipeline/ops/lowering.hpp"

namespace millrace::pipeline {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

/// The batch normalization at `norm`; nullptr for a group normalization.
const models::BatchNorm* batch_norm(const Compiler& compiler, OpId norm) {
  return std::get_if<models::BatchNorm>(&compiler.graph().op(norm).kind);
}

/// Whether the statistics of a norm span several replicas.
bool spans_replicas(const Compiler& compiler, OpId norm) {
  const models::BatchNorm* batch = batch_norm(compiler, norm);
  return compiler.training() && batch != nullptr && batch->span > 1;
}

std::int64_t channels(const Compiler& compiler, OpId norm) {
  const Graph& graph = compiler.graph();
  return graph.value(graph.op(norm).output).shape.c;
}

/// Floats with one value per channel for each set of statistics: one set per batch, or per sample.
std::int64_t values(const Compiler& compiler, OpId norm) {
  const std::int64_t sets = batch_norm(compiler, norm) != nullptr ? 1 : compiler.batch();
  return sets * channels(compiler, norm);
}

/// Two doubles per channel and replica.
BufferId make_exchange(Compiler& compiler, OpId norm) {
  return compiler.make_buffer(compiler.op_name(norm) + " exchange",
                              batch_norm(compiler, norm)->span * 2 * channels(compiler, norm) *
                                  static_cast<std::int64_t>(sizeof(double)));
}

/// Statistics of a norm's input, on this replica alone or over its group.
BufferId forward_statistics(Compiler& compiler, OpId norm, BufferId x, const ForwardPass& pass) {
  const bool spans = spans_replicas(compiler, norm);
  // Exchanged statistics are kept: they are small, and a second exchange would wait again.
  if (pass.repeated && spans) return pass.kept.statistics[norm.at()];
  const BufferId statistics = compiler.make_buffer(compiler.op_name(norm) + " statistics",
                                                   2 * values(compiler, norm) * kFloat);
  if (!compiler.training() && batch_norm(compiler, norm) != nullptr) {
    compiler.emit(pass.phase, KernelKind::NormRunning, norm, {{Role::Statistics, statistics}});
  } else if (spans) {
    const BufferId exchange = make_exchange(compiler, norm);
    compiler.emit(pass.phase, KernelKind::NormMoments, norm,
                  {{Role::X, x}, {Role::Exchange, exchange}});
    compiler.emit(pass.phase, KernelKind::NormJoinMoments, norm,
                  {{Role::Exchange, exchange}, {Role::Statistics, statistics}});
  } else {
    compiler
        .emit(pass.phase, KernelKind::NormStatistics, norm,
              {{Role::X, x}, {Role::Statistics, statistics}})
        .repeated = pass.repeated;
  }
  return statistics;
}

/// Whether the norm's backward pass is more than that of the addition that is fused with it.
bool has_backward(const Compiler& compiler, const Node& node) {
  return models::learns(compiler.graph(), node.leader) || compiler.wants_gradient(node.input);
}

/// Whether the backward pass reads bits of ReLU's output behind an addition, not its values: of
/// channels that fill bytes.
bool keeps_mask(Compiler& compiler, const Node& node) {
  return compiler.program().options.saves_traffic && compiler.training() && node.skip.valid() &&
         node.fn == Activation::Relu && has_backward(compiler, node) &&
         channels(compiler, node.leader) % 8 == 0;
}

void forward(Compiler& compiler, const Node& node, ForwardPass& pass) {
  const BufferId x = pass.kept.of(node.input);
  const OpId norm = node.leader;
  if (!node.counted) pass.kept.statistics[norm.at()] = forward_statistics(compiler, norm, x, pass);
  const BufferId statistics = pass.kept.statistics[norm.at()];
  if (node.applied_behind || compiler.inlined_norm(node.output) != nullptr) return;
  const BufferId y = compiler.make_output(node, pass);
  Call& apply = compiler.emit(pass.phase, KernelKind::NormApply, norm,
                              {{Role::X, x}, {Role::Statistics, statistics}, {Role::Y, y}});
  apply.fn = node.fn;
  if (node.skip_norm.valid()) {
    apply.skip_norm = node.skip_norm;
    const ValueId x_of_skip = compiler.graph().op(node.skip_norm).inputs.front();
    apply.at(Role::Skip) = pass.kept.of(compiler.source(x_of_skip));
    apply.at(Role::SkipStatistics) = pass.kept.statistics[node.skip_norm.at()];
  } else if (node.skip.valid()) {
    apply.at(Role::Skip) = pass.kept.of(node.skip);
  }
  if (!keeps_mask(compiler, node)) return;
  const std::int64_t elements = compiler.graph().value(node.output).shape.elements();
  pass.kept.mask[norm.at()] = apply.at(Role::Mask) =
      compiler.make_buffer(compiler.op_name(norm) + " mask", compiler.batch() * elements / 8);
}

/// The first pass: sums over the gradient, and the gradient `dz` before a fused addition.
struct Reduced {
  BufferId dz;      ///< invalid if the first pass does not write it
  BufferId source;  ///< what the second pass reads
  BufferId exchange, coefficients;
  BufferId scale, dmean;  ///< of squeeze and excitation, if the norm is inlined
};

/// What a value is multiplied by.
BufferId factors(const Compiler& compiler, ValueId value) {
  for (const OpId reader : compiler.graph().consumers(value)) {
    const models::Op& op = compiler.graph().op(reader);
    if (std::holds_alternative<models::ScaleChannels>(op.kind))
      return compiler.kept().of(compiler.source(op.inputs[1]));
  }
  return {};
}

Reduced reduce(Compiler& compiler, const Node& node) {
  const OpId norm = node.leader;
  const std::vector<BufferId> dy = compiler.take_gradients(node.output, 2);
  Reduced r;
  if (compiler.inlined_norm(node.output) != nullptr) r.scale = factors(compiler, node.output);
  if (r.scale.valid()) r.dmean = dy.at(1);
  const bool two = dy.size() == 2 && !r.scale.valid();
  const bool spans = spans_replicas(compiler, norm);
  const BufferId sums =
      compiler.make_buffer("d " + compiler.op_name(norm), 2 * channels(compiler, norm) * kFloat);
  r.coefficients = compiler.make_buffer(compiler.op_name(norm) + " coefficients",
                                        3 * values(compiler, norm) * kFloat);
  if (node.skip.valid() || two) r.dz = compiler.joined_gradient(node, dy);
  r.source = r.dz.valid() ? r.dz : dy[0];
  if (spans) r.exchange = make_exchange(compiler, norm);
  Call& call = compiler.emit(
      Phase::BackwardInput, spans ? KernelKind::NormBackwardSums : KernelKind::NormBackwardReduce,
      norm,
      {{Role::Dy, dy[0]},
       {Role::X, compiler.kept().of(node.input)},
       {Role::Statistics, compiler.kept().statistics[norm.at()]},
       {Role::Dy2, two ? dy[1] : r.dmean},
       {Role::Scale, r.scale},
       {Role::Dz, r.dz},
       {Role::Sums, sums},
       {spans ? Role::Exchange : Role::Coefficients, spans ? r.exchange : r.coefficients}});
  call.fn = node.fn;
  if (node.skip.valid()) {
    call.with_skip = true;
    const BufferId mask = compiler.kept().mask[norm.at()];
    if (mask.valid())
      call.at(Role::Mask) = mask;
    else if (node.fn != Activation::None)
      call.at(Role::Y) = compiler.kept().of(node.output);
    compiler.contribute(node.skip, node.adder, r.dz);
  }
  if (models::learns(compiler.graph(), norm)) {
    compiler.emit(compiler.weight_phase(), KernelKind::NormBackwardWeight, norm,
                  {{Role::Sums, sums}});
  }
  return r;
}

void backward(Compiler& compiler, const Node& node) {
  if (!node.output.valid()) return;  // statistics alone
  const OpId norm = node.leader;
  if (!has_backward(compiler, node)) {
    // Norm fused with an addition: only the addition's other operand needs its gradient.
    compiler.contribute(node.skip, node.adder,
                        compiler.undo_fused(node, compiler.take_gradient(node.output)));
    return;
  }
  const Reduced r = reduce(compiler, node);
  if (!compiler.wants_gradient(node.input)) return;
  const BufferId statistics = compiler.kept().statistics[norm.at()];
  if (r.exchange.valid()) {
    compiler.emit(Phase::BackwardInput, KernelKind::NormJoinSums, norm,
                  {{Role::Exchange, r.exchange},
                   {Role::Statistics, statistics},
                   {Role::Coefficients, r.coefficients}});
  }
  const BufferId dx = compiler.output_gradient(node.input, r.source);
  Call& apply = compiler.emit(Phase::BackwardInput, KernelKind::NormBackwardApply, norm,
                              {{Role::Dy, r.source},
                               {Role::Dy2, r.dmean},
                               {Role::Scale, r.scale},
                               {Role::X, compiler.kept().of(node.input)},
                               {Role::Statistics, statistics},
                               {Role::Coefficients, r.coefficients},
                               {Role::Dx, dx}});
  apply.fn = r.dz.valid() ? Activation::None : node.fn;
  compiler.contribute(node.input, norm, dx);
}

constexpr Lowering kNorm = {
    .fusion = {.activation = FusedActivation::Any, .addition = true, .relu_of_sum = true},
    .forward = forward,
    .backward = backward};

}  // namespace

Lowering lowering(const models::BatchNorm&) { return kNorm; }
Lowering lowering(const models::GroupNorm&) { return kNorm; }

}  // namespace millrace::pipeline
