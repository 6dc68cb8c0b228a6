// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.hpp"

#include "ops/instantiate.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;

// Elements per work item: enough for vector loops on CPUs, one on GPUs.
constexpr std::int64_t kBlock = device::kHostAccessible ? 4096 : 1;

template <class Body>
struct Blocks {
  Body body;
  std::int64_t n;
  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t first = block * kBlock;
    const std::int64_t last = first + kBlock < n ? first + kBlock : n;
    MILLRACE_SIMD
    for (std::int64_t i = first; i < last; ++i) body(i);
  }
};

template <std::size_t kLabelSize, class Body>
void for_elements(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
                  const Body& body) {
  device::parallel(label, space, (n + kBlock - 1) / kBlock, Blocks<Body>{body, n});
}

template <class T, Activation kFn>
struct ActivationForward {
  T* y;
  const T* x;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    y[i] = store_fn<T, kFn>(to_float(x[i]));
  }
};

template <class T, Activation kFn>
struct ActivationBackward {
  T* dx;
  const T* dy;
  const T* x;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    dx[i] = store_exact<T>(rounded_fn_gradient<T, kFn>(to_float(dy[i]), to_float(x[i])));
  }
};

template <class T, Activation kFn>
struct AddForward {
  T* y;
  const T* a;
  const T* b;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    y[i] = store_fn<T, kFn>(rounded_as<T>(to_float(a[i]) + to_float(b[i])));
  }
};

}  // namespace

template <class T>
void activation_forward(const ExecutionSpace& space, T* y, const T* x, std::int64_t n,
                        Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    for_elements("activation", space, n, ActivationForward<T, kFn>{y, x});
  });
}

template <class T>
void activation_backward(const ExecutionSpace& space, T* dx, const T* dy, const T* x,
                         std::int64_t n, Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    for_elements("activation dx", space, n, ActivationBackward<T, kFn>{dx, dy, x});
  });
}

template <class T>
void add_forward(const ExecutionSpace& space, T* y, const T* a, const T* b, std::int64_t n,
                 Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    for_elements("add", space, n, AddForward<T, kFn>{y, a, b});
  });
}

template <class T>
void add_gradients(const ExecutionSpace& space, T* sum, const T* a, const T* b, std::int64_t n) {
  for_elements("add gradients", space, n, AddForward<T, Activation::None>{sum, a, b});
}

void accumulate(const ExecutionSpace& space, float* total, const float* part, std::int64_t n,
                bool first) {
  if (first) return convert(space, total, part, n);
  for_elements(
      "accumulate", space, n, KOKKOS_LAMBDA(std::int64_t i) { total[i] += part[i]; });
}

template <class T>
void convert(const ExecutionSpace& space, T* y, const float* x, std::int64_t n) {
  for_elements(
      "convert", space, n, KOKKOS_LAMBDA(std::int64_t i) { y[i] = store_as<T>(x[i]); });
}

template <class T>
void widen(const ExecutionSpace& space, float* y, const T* x, std::int64_t n) {
  for_elements(
      "widen", space, n, KOKKOS_LAMBDA(std::int64_t i) { y[i] = to_float(x[i]); });
}

MILLRACE_INSTANTIATE(activation_forward)
MILLRACE_INSTANTIATE(activation_backward)
MILLRACE_INSTANTIATE(add_forward)
MILLRACE_INSTANTIATE(add_gradients)
MILLRACE_INSTANTIATE(convert)
MILLRACE_INSTANTIATE(widen)

}  // namespace millrace::ops
