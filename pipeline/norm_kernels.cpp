// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.hpp"
#include "ops/norm.hpp"
#include "pipeline/kernels.hpp"
#include "pipeline/op_shapes.hpp"

namespace millrace::pipeline {
namespace {

using device::ExecutionSpace;
using models::ParameterRole;

models::ParameterId parameter(const Binding& b, ParameterRole role) {
  return parameter_of(b.graph, b.call.op, role);
}

template <class T>
Kernel statistics(const Binding& b, const ops::NormShape& shape) {
  ops::RunningSums running;
  if (const auto mean = parameter(b, ParameterRole::MovingMean); mean.valid() && !b.call.repeated) {
    running.mean = b.parameters.running_sum(mean);
    running.variance = b.parameters.running_sum(parameter(b, ParameterRole::MovingVariance));
  }
  const auto out = b.operand<float>(Role::Statistics);
  const auto x = b.operand<T>(Role::X);
  const float epsilon = norm_epsilon(b.graph, b.call.op);
  return [=, scratch = b.scratch](const ExecutionSpace& space, const RunContext& c) {
    ops::RunningSums sums = running;
    sums.first = c.first;
    ops::norm_statistics<T>(space, shape, out(c), sums, scratch, x(c), epsilon);
  };
}

Kernel statistics_from_running(const Binding& b, const ops::NormShape& shape) {
  const float* mean = b.parameters.value(parameter(b, ParameterRole::MovingMean));
  const float* variance = b.parameters.value(parameter(b, ParameterRole::MovingVariance));
  const auto out = b.operand<float>(Role::Statistics);
  const float epsilon = norm_epsilon(b.graph, b.call.op);
  return [=](const ExecutionSpace& space, const RunContext& c) {
    ops::norm_statistics_from_running(space, shape.channels, out(c), mean, variance, epsilon);
  };
}

struct Affine {
  const float* gamma;
  const float* beta;
};

Affine affine(const Binding& b) {
  return {b.parameters.value(parameter(b, ParameterRole::Gamma)),
          b.parameters.value(parameter(b, ParameterRole::Beta))};
}

template <class T>
Kernel apply(const Binding& b, const ops::NormShape& shape) {
  const auto y = b.operand<T>(Role::Y);
  const auto x = b.operand<T>(Role::X);
  const auto skip = b.operand<T>(Role::Skip);
  const auto statistics = b.operand<float>(Role::Statistics);
  return [=, p = affine(b), fn = b.fn()](const ExecutionSpace& space, const RunContext& c) {
    ops::norm_apply<T>(space, shape, y(c), x(c), skip(c), statistics(c), p.gamma, p.beta, fn);
  };
}

template <class T>
Kernel backward_reduce(const Binding& b, const ops::NormShape& shape) {
  const auto dy = b.operand<T>(Role::Dy);
  const auto dy2 = b.operand<T>(Role::Dy2);
  const auto y = b.operand<T>(Role::Y);
  const auto x = b.operand<T>(Role::X);
  const auto dz = b.operand<T>(Role::Dz);
  const auto statistics = b.operand<float>(Role::Statistics);
  const auto coefficients = b.operand<float>(Role::Coefficients);
  const auto sums = b.operand<float>(Role::Sums);
  ops::NormBackwardReduce<T> fixed;
  fixed.gamma = affine(b).gamma;
  fixed.beta = affine(b).beta;
  fixed.scratch = b.scratch;
  fixed.skip_used = b.call.with_skip;
  fixed.fn = b.fn();
  return [=](const ExecutionSpace& space, const RunContext& c) {
    ops::NormBackwardReduce<T> args = fixed;
    args.dy = dy(c);
    args.dy2 = dy2(c);
    args.y = y(c);
    args.x = x(c);
    args.dz = dz(c);
    args.statistics = statistics(c);
    args.coefficients = coefficients(c);
    args.dgamma = sums(c);
    args.dbeta = args.dgamma + shape.channels;
    ops::norm_backward_reduce<T>(space, shape, args);
  };
}

template <class T>
Kernel backward_apply(const Binding& b, const ops::NormShape& shape) {
  const auto dx = b.operand<T>(Role::Dx);
  const auto dy = b.operand<T>(Role::Dy);
  const auto x = b.operand<T>(Role::X);
  const auto coefficients = b.operand<float>(Role::Coefficients);
  const auto statistics = b.operand<float>(Role::Statistics);
  return [=, p = affine(b), fn = b.fn()](const ExecutionSpace& space, const RunContext& c) {
    ops::norm_backward_apply<T>(space, shape, dx(c), dy(c), x(c), coefficients(c), statistics(c),
                                p.gamma, p.beta, fn);
  };
}

Kernel backward_weight(const Binding& b, std::int64_t channels) {
  float* dgamma = b.parameters.gradient(parameter(b, ParameterRole::Gamma));
  float* dbeta = b.parameters.gradient(parameter(b, ParameterRole::Beta));
  const auto sums = b.operand<float>(Role::Sums);
  return [=](const ExecutionSpace& space, const RunContext& c) {
    ops::accumulate(space, dgamma, sums(c), channels, c.first);
    ops::accumulate(space, dbeta, sums(c) + channels, channels, c.first);
  };
}

}  // namespace

template <class T>
Kernel make_norm_kernel(const Binding& b) {
  const ops::NormShape shape = norm_shape(b.graph, b.call.op, b.batch);
  switch (b.call.kind) {
    case KernelKind::NormStatistics:
      return statistics<T>(b, shape);
    case KernelKind::NormRunning:
      return statistics_from_running(b, shape);
    case KernelKind::NormApply:
      return apply<T>(b, shape);
    case KernelKind::NormBackwardReduce:
      return backward_reduce<T>(b, shape);
    case KernelKind::NormBackwardApply:
      return backward_apply<T>(b, shape);
    default:
      return backward_weight(b, shape.channels);
  }
}

template Kernel make_norm_kernel<float>(const Binding&);
template Kernel make_norm_kernel<bfloat16>(const Binding&);

}  // namespace millrace::pipeline
