// SPDX-License-Identifier: Apache-2.0
#include "ops/norm.hpp"
#include "pipeline/kernels.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using models::ParameterRole;

models::ParameterId parameter(const Binding& b, ParameterRole role) {
  return parameter_of(b.graph, b.call.op, role);
}

float* value(const Binding& b, ParameterRole role) {
  return b.parameters.value(parameter(b, role));
}

float* gradient(const Binding& b, ParameterRole role) {
  return b.parameters.gradient(parameter(b, role));
}

/// Replicas that share the statistics.
std::int64_t span(const Binding& b) {
  return std::get<models::BatchNorm>(b.graph.op(b.call.op).kind).span;
}

/// Every replica adds the statistics of the whole group, so the mean over the replicas is the same.
auto running(const Binding& b) {
  return [sums = running_sums(b.graph, b.call, b.parameters)](const RunContext& c) {
    ops::RunningSums running = sums;
    running.first = c.first;
    return running;
  };
}

/// This replica's part of what its group exchanges.
auto own_part(const Binding& b, const ops::NormShape& shape) {
  return [exchange = b.operand<ops::Accumulator>(Role::Exchange), size = shape.part_values()](
             const RunContext& c) { return exchange(c) + c.member * size; };
}

/// Operands of both first passes of the backward.
template <class T>
auto reduce_arguments(const Binding& b, const ops::NormShape& shape) {
  ops::NormBackwardReduce<T> fixed;
  fixed.gamma = value(b, ParameterRole::Gamma);
  fixed.beta = value(b, ParameterRole::Beta);
  fixed.scratch = b.norm_scratch;
  fixed.skip_used = b.call.with_skip;
  fixed.fn = b.call.fn;
  if (b.adds_gradients) {
    fixed.total_dgamma = gradient(b, ParameterRole::Gamma);
    fixed.total_dbeta = gradient(b, ParameterRole::Beta);
  }
  return [=, dy = b.operand<T>(Role::Dy), dy2 = b.operand<T>(Role::Dy2), y = b.operand<T>(Role::Y),
          x = b.operand<T>(Role::X), dz = b.operand<T>(Role::Dz),
          statistics = b.operand<float>(Role::Statistics),
          coefficients = b.operand<float>(Role::Coefficients), sums = b.operand<float>(Role::Sums),
          channels = shape.channels](const RunContext& c) {
    ops::NormBackwardReduce<T> args = fixed;
    args.dy = dy(c);
    args.dy2 = dy2(c);
    args.y = y(c);
    args.x = x(c);
    args.dz = dz(c);
    args.statistics = statistics(c);
    args.coefficients = coefficients(c);
    args.dgamma = sums(c);
    args.dbeta = args.dgamma + channels;
    args.first = c.first;
    return args;
  };
}

Kernel backward_weight(const Binding& b, std::int64_t channels) {
  if (b.adds_gradients) return [](const device::ExecutionSpace&, const RunContext&) {};
  return calling(ops::add_parameter_gradients, channels, gradient(b, ParameterRole::Gamma),
                 gradient(b, ParameterRole::Beta), b.operand<float>(Role::Sums),
                 [](const RunContext& c) { return c.first; });
}

template <class T>
Kernel make(const Binding& b) {
  const ops::NormShape shape = norm_shape(b.graph, b.call.op, b.batch);
  const float epsilon = norm_epsilon(b.graph, b.call.op);
  const float* gamma = value(b, ParameterRole::Gamma);
  const float* beta = value(b, ParameterRole::Beta);
  const auto at = [&](Role role) { return b.operand<T>(role); };
  const auto statistics = b.operand<float>(Role::Statistics);
  const auto coefficients = b.operand<float>(Role::Coefficients);
  const auto exchange = b.operand<ops::Accumulator>(Role::Exchange);
  switch (b.call.kind) {
    case KernelKind::NormStatistics:
      return calling(ops::norm_statistics<T>, shape, statistics, running(b), b.norm_scratch,
                     at(Role::X), epsilon);
    case KernelKind::NormMoments:
      return calling(ops::norm_moments<T>, shape, own_part(b, shape), b.norm_scratch, at(Role::X));
    case KernelKind::NormJoinMoments:
      return calling(ops::norm_join_moments, shape, span(b), statistics, running(b), exchange,
                     epsilon);
    case KernelKind::NormRunning:
      return calling(ops::norm_statistics_from_running, shape.channels, statistics,
                     value(b, ParameterRole::MovingMean), value(b, ParameterRole::MovingVariance),
                     epsilon);
    case KernelKind::NormApply:
      return calling(ops::norm_apply<T>, shape, at(Role::Y), at(Role::X), at(Role::Skip),
                     statistics, gamma, beta, b.call.fn);
    case KernelKind::NormBackwardReduce:
      return calling(ops::norm_backward_reduce<T>, shape, reduce_arguments<T>(b, shape));
    case KernelKind::NormBackwardSums:
      return calling(ops::norm_backward_sums<T>, shape, own_part(b, shape),
                     reduce_arguments<T>(b, shape));
    case KernelKind::NormJoinSums:
      return calling(ops::norm_join_sums, shape, span(b), coefficients, exchange, statistics,
                     gamma);
    case KernelKind::NormBackwardApply:
      return calling(ops::norm_backward_apply<T>, shape, at(Role::Dx), at(Role::Dy), at(Role::X),
                     coefficients, statistics, gamma, beta, b.call.fn);
    default:
      MILLRACE_ASSERT(b.call.kind == KernelKind::NormBackwardWeight);
      return backward_weight(b, shape.channels);
  }
}

}  // namespace

ops::RunningSums running_sums(const Graph& graph, const Call& call, const Parameters& parameters) {
  ops::RunningSums running;
  const auto mean = parameter_of(graph, call.op, ParameterRole::MovingMean);
  if (mean.valid() && !call.repeated) {
    running.mean = parameters.running_sum(mean);
    running.variance =
        parameters.running_sum(parameter_of(graph, call.op, ParameterRole::MovingVariance));
  }
  return running;
}

Kernel make_norm_kernel(const Binding& b) {
  return device::dispatch(b.type, [&]<class T>() { return make<T>(b); });
}

}  // namespace millrace::pipeline
