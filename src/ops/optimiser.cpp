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

}  // namespace millrace::ops
