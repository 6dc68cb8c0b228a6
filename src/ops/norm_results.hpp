// SPDX-License-Identifier: Apache-2.0
//
// What norms share whose sums are added up in different ways: which first backward pass runs, and
// what is made of the sums.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/error.hpp"
#include "ops/norm.hpp"

namespace millrace::ops {

/// Mean of some elements and the sum of their squared deviations.
struct Moments {
  Accumulator mean;
  Accumulator squares;
};

/// `own`, a difference of squares: rounding must not leave it negative. A NaN remains one.
KOKKOS_INLINE_FUNCTION Accumulator not_negative(Accumulator own) {
  return Accumulator{} > own ? Accumulator{} : own;
}
/// The same, where infinite `squares`, from which something was subtracted, remain infinite.
KOKKOS_INLINE_FUNCTION float not_negative(float own, float squares) {
  return own >= 0.0f ? own : own < 0.0f ? 0.0f : squares;
}

/// Writes the statistics of a channel from the moments of its `count` elements.
struct StatisticsOf {
  RunningSums running;
  float epsilon;

  KOKKOS_INLINE_FUNCTION float inverse_deviation(const Moments& m, Accumulator count) const {
    using std::sqrt;
    const auto one = static_cast<Accumulator>(1.0f);
    return static_cast<float>(one / sqrt(m.squares / count + static_cast<Accumulator>(epsilon)));
  }
  /// Of a channel that is a set.
  KOKKOS_INLINE_FUNCTION void write(float* statistics, std::int64_t channels, std::int64_t channel,
                                    const Moments& m, Accumulator count) const {
    statistics[channel] = static_cast<float>(m.mean);
    statistics[channels + channel] = inverse_deviation(m, count);
    add_running(channel, m, count);
  }
  KOKKOS_INLINE_FUNCTION void add_running(std::int64_t channel, const Moments& m,
                                          Accumulator count) const {
    if (running.mean == nullptr) return;
    const auto one = static_cast<Accumulator>(1.0f);
    const auto unbiased = static_cast<float>(m.squares / (count > one ? count - one : count));
    const auto mean = static_cast<float>(m.mean);
    running.mean[channel] = running.first ? mean : running.mean[channel] + mean;
    running.variance[channel] = running.first ? unbiased : running.variance[channel] + unbiased;
  }
};

/// Calls run.template operator()<kFn, kSkip, kTwo, kMask>() for the activation, the skip, the
/// second gradient and the mask of a first backward pass.
template <class T, class Run>
void dispatch_reduce(const NormBackwardReduce<T>& args, const Run& run) {
  const bool two = args.dy2 != nullptr;
  MILLRACE_ASSERT((args.dz != nullptr) == (args.skip_used || two));
  MILLRACE_ASSERT(args.mask == nullptr || (args.skip_used && args.fn == Activation::Relu));
  MILLRACE_ASSERT(!args.skip_used || args.fn == Activation::None || args.fn == Activation::Relu);
  dispatch_fn(args.fn, [&]<Activation kFn>() {
    const auto run_for = [&]<bool kSkip, bool kMask>() {
      if (two) return run.template operator()<kFn, kSkip, true, kMask>();
      run.template operator()<kFn, kSkip, false, kMask>();
    };
    if constexpr (kFn == Activation::Relu)
      if (args.mask != nullptr) return run_for.template operator()<true, true>();
    if constexpr (kExact<kFn>)
      if (args.skip_used) return run_for.template operator()<true, false>();
    run_for.template operator()<false, false>();
  });
}

struct ParameterGradient {
  float gamma;
  float beta;
};

/// Where the gradients of the parameters go.
struct ParameterSums {
  float* dgamma;
  float* dbeta;
  float* total_dgamma;
  float* total_dbeta;
  bool first;
  KOKKOS_INLINE_FUNCTION void store(std::int64_t c, const ParameterGradient& sum) const {
    dbeta[c] = sum.beta;
    dgamma[c] = sum.gamma;
    if (total_dgamma == nullptr) return;
    total_dbeta[c] = first ? sum.beta : total_dbeta[c] + sum.beta;
    total_dgamma[c] = first ? sum.gamma : total_dgamma[c] + sum.gamma;
  }
};

template <class T>
ParameterSums parameter_sums(const NormBackwardReduce<T>& args) {
  return {args.dgamma, args.dbeta, args.total_dgamma, args.total_dbeta, args.first};
}

/// Converts the sums of one group to A, B and C of dx = A dz + B x + C for each of its channels.
struct Coefficients {
  NormShape shape;
  std::int64_t parts;  // number of parts of the batch, each of this shape
  const float* statistics;
  const float* gamma;
  const float* sums;    // of dz, of dz xhat
  float* coefficients;  // A, B, C; may be `sums`

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t instance = i / shape.groups;
    const std::int64_t group = i % shape.groups;
    const std::int64_t members = shape.channels / shape.groups;
    const std::int64_t step = shape.strided_groups ? shape.groups : 1;
    const std::int64_t first = shape.strided_groups ? group : group * members;
    const std::int64_t all = shape.instances() * shape.channels;
    const std::int64_t base = instance * shape.channels;
    float sum = 0.0f;
    float product = 0.0f;
    for (std::int64_t c = first; c < first + members * step; c += step) {
      sum += gamma[c] * sums[base + c];
      product += gamma[c] * sums[all + base + c];
    }
    const float count = static_cast<float>(shape.rows * members * parts);
    sum /= count;
    product /= count;
    for (std::int64_t c = first; c < first + members * step; c += step) {
      const float mean = statistics[base + c];
      const float inverse = statistics[all + base + c];
      coefficients[base + c] = gamma[c] * inverse;
      const float slope = -inverse * inverse * product;
      coefficients[all + base + c] = slope;
      coefficients[2 * all + base + c] = -inverse * sum - slope * mean;
    }
  }
};

}  // namespace millrace::ops
