// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.hpp"

#include <cmath>

#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

/// An update of one span. What differs between rules is `step`: it moves the slots of element k and
/// returns what its weight loses.
template <class Rule>
struct UpdateSpan {
  Update update;
  UpdateArrays arrays;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Update u = update;  // which stores to the arrays cannot change
    const UpdateArrays a = arrays;
    const ParameterSpan span = a.spans[i];
    const float decay = span.decays ? u.weight_decay : 0.0f;
    const float ratio = Rule::kAdapts && span.adapts ? a.ratios[span.tensor] : 1.0f;
    MILLRACE_SIMD
    for (std::int64_t k = span.offset; k < span.offset + span.elements; ++k) {
      const float g = a.gradients[k] * u.gradient_scale + decay * a.weights[k];
      a.weights[k] -= Rule::step(u, a, k, g, ratio);
    }
  }
};

struct Sgd {
  static constexpr bool kAdapts = false;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, const UpdateArrays&, std::int64_t,
                                                float g, float) {
    return u.rate * g;
  }
};

struct Momentum {
  static constexpr bool kAdapts = false;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, const UpdateArrays& a,
                                                std::int64_t k, float g, float) {
    const float v = u.momentum * a.velocity[k] + g;
    a.velocity[k] = v;
    return u.rate * v;
  }
};

/// With the rate inside the velocity: Keras' momentum and, where tensors adapt, LARS.
template <bool kWithRatio>
struct RateInside {
  static constexpr bool kAdapts = kWithRatio;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, const UpdateArrays& a,
                                                std::int64_t k, float g, float ratio) {
    const float v = u.momentum * a.velocity[k] + u.rate * ratio * g;
    a.velocity[k] = v;
    return v;
  }
};

struct Nesterov {
  static constexpr bool kAdapts = false;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, const UpdateArrays& a,
                                                std::int64_t k, float g, float) {
    const float v = u.momentum * a.velocity[k] + g;
    a.velocity[k] = v;
    return u.rate * (g + u.momentum * v);
  }
};

struct RmsProp {
  static constexpr bool kAdapts = false;
  KOKKOS_FORCEINLINE_FUNCTION static float step(const Update& u, const UpdateArrays& a,
                                                std::int64_t k, float g, float) {
    const float s = u.mean_square_decay * a.mean_square[k] + (1.0f - u.mean_square_decay) * (g * g);
    const float v = u.momentum * a.velocity[k] + u.rate * g / sqrtf(s + u.epsilon);
    a.mean_square[k] = s;
    a.velocity[k] = v;
    return v;
  }
};

/// Sums of squares of a span's weights and gradients. Element k of a span goes to lane k %
/// kSumLanes and the lanes are added as a tree, so that the order is the span's own.
struct SquaresOfSpan {
  static constexpr int kSumLanes = 16;
  float scale;
  UpdateArrays a;

  KOKKOS_FUNCTION static double sum_of_squares(const float* x, std::int64_t n, float scale) {
    double lanes[kSumLanes] = {};
    const std::int64_t whole = n / kSumLanes * kSumLanes;
    for (std::int64_t k = 0; k < whole; k += kSumLanes) {
      MILLRACE_SIMD
      for (int lane = 0; lane < kSumLanes; ++lane) {
        const double value = static_cast<double>(x[k + lane] * scale);
        lanes[lane] += value * value;
      }
    }
    for (std::int64_t k = whole; k < n; ++k) {
      const double value = static_cast<double>(x[k] * scale);
      lanes[k - whole] += value * value;
    }
    for (int half = kSumLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
  }

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const ParameterSpan span = a.spans[i];
    if (!span.adapts) return;
    a.squares[2 * i] = sum_of_squares(a.weights + span.offset, span.elements, 1.0f);
    a.squares[2 * i + 1] = sum_of_squares(a.gradients + span.offset, span.elements, scale);
  }
};

/// A tensor's ratio from the sums of its spans, which are added in place as a tree.
struct LarsRatio {
  Update u;
  UpdateArrays a;

  KOKKOS_FUNCTION void operator()(std::int64_t t) const {
    const TensorSpans tensor = a.tensors[t];
    if (!a.spans[tensor.first].adapts) return;
    double* const sums = a.squares + 2 * tensor.first;
    for (std::int64_t step = 1; step < tensor.spans; step *= 2) {
      for (std::int64_t i = 0; i + step < tensor.spans; i += 2 * step) {
        sums[2 * i] += sums[2 * (i + step)];
        sums[2 * i + 1] += sums[2 * (i + step) + 1];
      }
    }
    a.ratios[t] = ratio(sqrt(sums[0]), sqrt(sums[1]), a.spans[tensor.first].decays);
  }

  KOKKOS_FUNCTION float ratio(double weights, double gradients, bool decays) const {
    if (weights == 0.0 || gradients == 0.0) return 1.0f;
    const double decay = decays ? static_cast<double>(u.weight_decay) : 0.0;
    const double below = gradients + decay * weights + static_cast<double>(u.epsilon);
    return static_cast<float>(static_cast<double>(u.trust) * weights / below);
  }
};

/// A block of elements, which the parts are added to one after the other.
struct AddParts {
  static constexpr std::int64_t kBlock = 1024;
  std::int64_t n;
  float* out;
  const float* others;
  std::int64_t stride;
  int own;
  int parts;

  KOKKOS_FUNCTION const float* part(int p) const {
    return p == own ? out : others + (p < own ? p : p - 1) * stride;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * kBlock;
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    float sum[kBlock];
    const float* first = part(0) + begin;
    MILLRACE_SIMD
    for (std::int64_t i = 0; i < length; ++i) sum[i] = first[i];
    for (int p = 1; p < parts; ++p) {
      const float* next = part(p) + begin;
      MILLRACE_SIMD
      for (std::int64_t i = 0; i < length; ++i) sum[i] += next[i];
    }
    MILLRACE_SIMD
    for (std::int64_t i = 0; i < length; ++i) out[begin + i] = sum[i];
  }
};

}  // namespace

void update_weights(const device::ExecutionSpace& space, UpdateRule rule, const Update& u,
                    const UpdateArrays& a) {
  switch (rule) {
    case UpdateRule::Sgd:
      return device::parallel("sgd", space, a.num_spans, UpdateSpan<Sgd>{u, a});
    case UpdateRule::Momentum:
      return device::parallel("momentum", space, a.num_spans, UpdateSpan<Momentum>{u, a});
    case UpdateRule::MomentumRateInside:
      return device::parallel("rate_inside", space, a.num_spans,
                              UpdateSpan<RateInside<false>>{u, a});
    case UpdateRule::Nesterov:
      return device::parallel("nesterov", space, a.num_spans, UpdateSpan<Nesterov>{u, a});
    case UpdateRule::RmsProp:
      return device::parallel("rmsprop", space, a.num_spans, UpdateSpan<RmsProp>{u, a});
    case UpdateRule::Lars:
      device::parallel("lars_squares", space, a.num_spans, SquaresOfSpan{u.gradient_scale, a});
      device::parallel("lars_ratio", space, a.num_tensors, LarsRatio{u, a});
      return device::parallel("lars", space, a.num_spans, UpdateSpan<RateInside<true>>{u, a});
  }
}

void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const float* others,
               std::int64_t stride, int own, int parts) {
  const AddParts add{n, out, others, stride, own, parts};
  device::parallel("add_parts", space, (n + AddParts::kBlock - 1) / AddParts::kBlock, add);
}

}  // namespace millrace::ops
