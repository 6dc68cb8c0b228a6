// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_loss.hpp"

#include <cmath>

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

template <class T>
KOKKOS_INLINE_FUNCTION float largest(const T* row, std::int64_t classes) {
  float top = to_float(row[0]);
  for (std::int64_t k = 1; k < classes; ++k) {
    const float z = to_float(row[k]);
    if (z > top) top = z;
  }
  return top;
}

template <class T>
struct Forward {
  SoftmaxLossShape s;
  float* loss;
  std::int32_t* rank;
  const T* logits;
  const std::int32_t* labels;

  KOKKOS_FUNCTION void operator()(std::int64_t n) const {
    const T* row = logits + n * s.classes;
    const std::int32_t label = labels[n];
    if (label < 0) {
      loss[n] = 0.0f;
      rank[n] = static_cast<std::int32_t>(s.classes);
      return;
    }
    const float top = largest(row, s.classes);
    const float own = to_float(row[label]);
    float total = 0.0f;
    float sum = 0.0f;
    std::int32_t ahead = 0;
    for (std::int64_t k = 0; k < s.classes; ++k) {
      const float z = to_float(row[k]);
      total += std::exp(z - top);
      sum += z - top;
      ahead += z > own || (!(z < own) && k < label) ? 1 : 0;
    }
    const float log_total = std::log(total);
    const float off = s.smoothing / static_cast<float>(s.classes - 1);
    const float log_own = own - top - log_total;
    const float log_all = sum - static_cast<float>(s.classes) * log_total;
    loss[n] = -((1.0f - s.smoothing) * log_own + off * (log_all - log_own));
    rank[n] = ahead;
  }
};

template <class T>
struct Backward {
  SoftmaxLossShape s;
  T* dlogits;
  const T* logits;
  const std::int32_t* labels;
  float scale;

  KOKKOS_FUNCTION void operator()(std::int64_t n) const {
    const T* row = logits + n * s.classes;
    T* out = dlogits + n * s.classes;
    const std::int32_t label = labels[n];
    if (label < 0) {
      for (std::int64_t k = 0; k < s.classes; ++k) out[k] = store_as<T>(0.0f);
      return;
    }
    const float top = largest(row, s.classes);
    float total = 0.0f;
    for (std::int64_t k = 0; k < s.classes; ++k) total += std::exp(to_float(row[k]) - top);
    const float off = s.smoothing / static_cast<float>(s.classes - 1);
    for (std::int64_t k = 0; k < s.classes; ++k) {
      const float p = std::exp(to_float(row[k]) - top) / total;
      const float target = k == label ? 1.0f - s.smoothing : off;
      out[k] = store_as<T>((p - target) * scale);
    }
  }
};

}  // namespace

template <class T>
void softmax_loss_forward(const ExecutionSpace& space, const SoftmaxLossShape& shape, float* loss,
                          std::int32_t* rank, const T* logits, const std::int32_t* labels) {
  parallel("softmax loss", space, shape.batch, Forward<T>{shape, loss, rank, logits, labels});
}

template <class T>
void softmax_loss_backward(const ExecutionSpace& space, const SoftmaxLossShape& shape, T* dlogits,
                           const T* logits, const std::int32_t* labels, float scale) {
  parallel("softmax dx", space, shape.batch, Backward<T>{shape, dlogits, logits, labels, scale});
}

#define MILLRACE_INSTANTIATE(T)                                                                 \
  template void softmax_loss_forward<T>(const ExecutionSpace&, const SoftmaxLossShape&, float*, \
                                        std::int32_t*, const T*, const std::int32_t*);          \
  template void softmax_loss_backward<T>(const ExecutionSpace&, const SoftmaxLossShape&, T*,    \
                                         const T*, const std::int32_t*, float);
MILLRACE_INSTANTIATE(float)
MILLRACE_INSTANTIATE(bfloat16)
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
