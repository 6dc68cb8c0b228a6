// SPDX-License-Identifier: Apache-2.0
#include "ops/optimiser.hpp"

#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

template <bool kMomentum>
struct Sgd {
  SgdUpdate u;
  float* weights;
  float* velocity;
  const float* gradients;
  const ParameterSpan* spans;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const ParameterSpan span = spans[i];
    const float decay = span.decays ? u.weight_decay : 0.0f;
    MILLRACE_SIMD
    for (std::int64_t k = span.offset; k < span.offset + span.elements; ++k) {
      float g = gradients[k] * u.gradient_scale + decay * weights[k];
      if constexpr (kMomentum) {
        g = u.momentum * velocity[k] + g;
        velocity[k] = g;
      }
      weights[k] -= u.rate * g;
    }
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

void sgd_update(const device::ExecutionSpace& space, const SgdUpdate& update, float* weights,
                float* velocity, const float* gradients, const ParameterSpan* spans,
                std::int64_t num_spans) {
  if (velocity != nullptr) {
    device::parallel("momentum", space, num_spans,
                     Sgd<true>{update, weights, velocity, gradients, spans});
  } else {
    device::parallel("sgd", space, num_spans,
                     Sgd<false>{update, weights, velocity, gradients, spans});
  }
}

void add_parts(const device::ExecutionSpace& space, std::int64_t n, float* out, const float* others,
               std::int64_t stride, int own, int parts) {
  const AddParts add{n, out, others, stride, own, parts};
  device::parallel("add_parts", space, (n + AddParts::kBlock - 1) / AddParts::kBlock, add);
}

}  // namespace millrace::ops
