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
  const auto out = b.operand<float>(Role::Statistics);
  const auto x = b.operand<T>(Role::X);
  const float epsilon = norm_epsilon(b.graph, b.call.op);
  return [=, running = running_sums(b.graph, b.call, b.parameters), scratch = b.scratch](
             const ExecutionSpace& space, const RunContext& c) {
    ops::RunningSums sums = running;
    sums.first = c.first;
    ops::norm_statistics<T>(space, shape, out(c), sums, scratch, x(c), epsilon);
  };
}

template <class T>
Kernel moments(const Binding& b, const ops::NormShape& shape) {
  const auto exchange = b.operand<double>(Role::Exchange);
  const auto x = b.operand<T>(Role::X);
  return [=, scratch = b.scratch](const ExecutionSpace& space, const RunContext& c) {
    double* own = exchange(c) + c.member * shape.part_doubles();
    ops::norm_moments<T>(space, shape, own, scratch, x(c));
  };
}

std::int64_t span(const Binding& b) {
  return std::get<models::BatchNorm>(b.graph.op(b.call.op).kind).span;
}

/// Every replica adds the statistics of the whole group, so the mean over the replicas is the same.
Kernel join_moments(const Binding& b, const ops::NormShape& shape) {
  const auto exchange = b.operand<double>(Role::Exchange);
  const auto out = b.operand<float>(Role::Statistics);
  const float epsilon = norm_epsilon(b.graph, b.call.op);
  return [=, parts = span(b), running = running_sums(b.graph, b.call, b.parameters)](
             const ExecutionSpace& space, const RunContext& c) {
    ops::RunningSums sums = running;
    sums.first = c.first;
    ops::norm_join_moments(space, shape, parts, out(c), sums, exchange(c), epsilon);
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
  return [=, p = affine(b), fn = b.call.fn](const ExecutionSpace& space, const RunContext& c) {
    ops::norm_apply<T>(space, shape, y(c), x(c), skip(c), statistics(c), p.gamma, p.beta, fn);
  };
}

/// Operands of both first passes of the backward.
template <class T>
class ReduceArguments {
 public:
  ReduceArguments(const Binding& b, const ops::NormShape& shape)
      : channels_(shape.channels),
        dy_(b.operand<T>(Role::Dy)),
        dy2_(b.operand<T>(Role::Dy2)),
        y_(b.operand<T>(Role::Y)),
        x_(b.operand<T>(Role::X)),
        dz_(b.operand<T>(Role::Dz)),
        statistics_(b.operand<float>(Role::Statistics)),
        coefficients_(b.operand<float>(Role::Coefficients)),
        sums_(b.operand<float>(Role::Sums)) {
    fixed_.gamma = affine(b).gamma;
    fixed_.beta = affine(b).beta;
    fixed_.scratch = b.scratch;
    fixed_.skip_used = b.call.with_skip;
    fixed_.fn = b.call.fn;
  }
  [[nodiscard]] ops::NormBackwardReduce<T> operator()(const RunContext& c) const {
    ops::NormBackwardReduce<T> args = fixed_;
    args.dy = dy_(c);
    args.dy2 = dy2_(c);
    args.y = y_(c);
    args.x = x_(c);
    args.dz = dz_(c);
    args.statistics = statistics_(c);
    args.coefficients = coefficients_(c);
    args.dgamma = sums_(c);
    args.dbeta = args.dgamma + channels_;
    return args;
  }

 private:
  std::int64_t channels_;
  Operand<T> dy_, dy2_, y_, x_, dz_;
  Operand<float> statistics_, coefficients_, sums_;
  ops::NormBackwardReduce<T> fixed_;
};

template <class T>
Kernel backward_reduce(const Binding& b, const ops::NormShape& shape) {
  return [shape, arguments = ReduceArguments<T>(b, shape)](const ExecutionSpace& space,
                                                           const RunContext& c) {
    ops::norm_backward_reduce<T>(space, shape, arguments(c));
  };
}

template <class T>
Kernel backward_sums(const Binding& b, const ops::NormShape& shape) {
  return [shape, arguments = ReduceArguments<T>(b, shape),
          exchange = b.operand<double>(Role::Exchange)](const ExecutionSpace& space,
                                                        const RunContext& c) {
    double* own = exchange(c) + c.member * shape.part_doubles();
    ops::norm_backward_sums<T>(space, shape, own, arguments(c));
  };
}

Kernel join_sums(const Binding& b, const ops::NormShape& shape) {
  const auto exchange = b.operand<double>(Role::Exchange);
  const auto statistics = b.operand<float>(Role::Statistics);
  const auto coefficients = b.operand<float>(Role::Coefficients);
  return [=, parts = span(b), gamma = affine(b).gamma](const ExecutionSpace& space,
                                                       const RunContext& c) {
    ops::norm_join_sums(space, shape, parts, coefficients(c), exchange(c), statistics(c), gamma);
  };
}

template <class T>
Kernel backward_apply(const Binding& b, const ops::NormShape& shape) {
  const auto dx = b.operand<T>(Role::Dx);
  const auto dy = b.operand<T>(Role::Dy);
  const auto x = b.operand<T>(Role::X);
  const auto coefficients = b.operand<float>(Role::Coefficients);
  const auto statistics = b.operand<float>(Role::Statistics);
  return [=, p = affine(b), fn = b.call.fn](const ExecutionSpace& space, const RunContext& c) {
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

template <class T>
Kernel make(const Binding& b) {
  const ops::NormShape shape = norm_shape(b.graph, b.call.op, b.batch);
  switch (b.call.kind) {
    case KernelKind::NormStatistics:
      return statistics<T>(b, shape);
    case KernelKind::NormMoments:
      return moments<T>(b, shape);
    case KernelKind::NormJoinMoments:
      return join_moments(b, shape);
    case KernelKind::NormRunning:
      return statistics_from_running(b, shape);
    case KernelKind::NormApply:
      return apply<T>(b, shape);
    case KernelKind::NormBackwardReduce:
      return backward_reduce<T>(b, shape);
    case KernelKind::NormBackwardSums:
      return backward_sums<T>(b, shape);
    case KernelKind::NormJoinSums:
      return join_sums(b, shape);
    case KernelKind::NormBackwardApply:
      return backward_apply<T>(b, shape);
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
