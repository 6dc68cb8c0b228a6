// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.hpp"

#include <limits>

#include "ops/lanes.hpp"
#include "ops/optimiser.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;

// Elements per work item: enough for vector loops on cores, one access of 16-bit values on
// accelerators.
constexpr std::int64_t kBlock = device::kOnCores ? 4096 : 8;

/// Runs body.template run<W>(i) for elements [i, i + W), which do not depend on others.
template <class Body>
struct Blocks {
  Body body;
  std::int64_t n;
  bool aligned;  ///< for accesses to several elements at once

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t first = block * kBlock;
    const std::int64_t last = first + kBlock < n ? first + kBlock : n;
    if constexpr (!device::kOnCores) {
      if (aligned && last - first == kBlock) return body.template run<kBlock>(first);
    }
    MILLRACE_SIMD
    for (std::int64_t i = first; i < last; ++i) body.template run<1>(i);
  }
};

template <std::size_t kLabelSize, class Body>
void for_elements(const char (&label)[kLabelSize], const ExecutionSpace& space, std::int64_t n,
                  bool aligned, const Body& body) {
  device::parallel(label, space, (n + kBlock - 1) / kBlock, Blocks<Body>{body, n, aligned});
}

template <class T, Activation kFn>
struct ActivationForward {
  T* y;
  const T* x;
  ActivationNumbers numbers;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t i) const {
    const LanesIn<W, T> in(x + i);
    LanesOut<W, T> out(y + i);
    for (int j = 0; j < W; ++j) out.set(j, store_fn<T, kFn>(to_float(in[j]), numbers));
  }
};

template <class T, Activation kFn>
struct ActivationBackward {
  T* dx;
  const T* dy;
  const T* x;
  ActivationNumbers numbers;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t i) const {
    const LanesIn<W, T> gradient(dy + i);
    const LanesIn<W, T> in(x + i);
    LanesOut<W, T> out(dx + i);
    for (int j = 0; j < W; ++j)
      out.set(j, store_exact<T>(
                     rounded_fn_gradient<T, kFn>(to_float(gradient[j]), to_float(in[j]), numbers)));
  }
};

template <class T, Activation kFn>
struct AddForward {
  T* y;
  const T* a;
  const T* b;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t i) const {
    const LanesIn<W, T> left(a + i);
    const LanesIn<W, T> right(b + i);
    LanesOut<W, T> out(y + i);
    for (int j = 0; j < W; ++j)
      out.set(j, store_fn<T, kFn>(rounded_as<T>(to_float(left[j]) + to_float(right[j]))));
  }
};

template <class T>
struct AddPart {
  float* total;
  const T* part;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t i) const {
    const LanesIn<W, float> before(total + i);
    const LanesIn<W, T> added(part + i);
    LanesOut<W, float> out(total + i);
    for (int j = 0; j < W; ++j) out.set(j, before[j] + to_float(added[j]));
  }
};

template <class To, class From>
struct Convert {
  To* y;
  const From* x;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(std::int64_t i) const {
    const LanesIn<W, From> in(x + i);
    LanesOut<W, To> out(y + i);
    for (int j = 0; j < W; ++j) out.set(j, store_as<To>(to_float(in[j])));
  }
};

/// Blocks of tensors one after another. The list is an argument of the kernel, so that a kept
/// launch needs no memory for it.
template <class T>
struct Accumulate {
  struct Part {
    float* total = nullptr;
    const T* part = nullptr;
    std::int64_t n = 0;
    std::int64_t first_block = std::numeric_limits<std::int64_t>::max();
  };
  Part parts[kMostParts];
  bool first;
  bool aligned;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    std::size_t at = 0;
    for (std::size_t step = kMostParts / 2; step > 0; step /= 2)
      if (parts[at + step].first_block <= i) at += step;
    const Part p = parts[at];
    if (first)
      Blocks<Convert<float, T>>{{p.total, p.part}, p.n, aligned}(i - p.first_block);
    else
      Blocks<AddPart<T>>{{p.total, p.part}, p.n, aligned}(i - p.first_block);
  }
};

/// The bounds of a Clip as values of T, so that an output at a bound is told from one within.
template <class T>
ActivationNumbers stored(ActivationNumbers numbers, Activation fn) {
  if (fn != Activation::Clip) return numbers;
  return {rounded_as<T>(numbers.a), rounded_as<T>(numbers.b)};
}

}  // namespace

template <class T>
void activation_forward(const ExecutionSpace& space, T* y, const T* x, std::int64_t n,
                        Activation fn, ActivationNumbers numbers) {
  dispatch_any_fn(fn, [&]<Activation kFn>() {
    for_elements("activation", space, n, are_aligned(y, x),
                 ActivationForward<T, kFn>{y, x, stored<T>(numbers, kFn)});
  });
}

template <class T>
void activation_backward(const ExecutionSpace& space, T* dx, const T* dy, const T* x,
                         std::int64_t n, Activation fn, ActivationNumbers numbers) {
  dispatch_any_fn(fn, [&]<Activation kFn>() {
    for_elements("activation dx", space, n, are_aligned(dx, dy, x),
                 ActivationBackward<T, kFn>{dx, dy, x, stored<T>(numbers, kFn)});
  });
}

template <class T>
void add_forward(const ExecutionSpace& space, T* y, const T* a, const T* b, std::int64_t n,
                 Activation fn) {
  dispatch_fn(fn, [&]<Activation kFn>() {
    for_elements("add", space, n, are_aligned(y, a, b), AddForward<T, kFn>{y, a, b});
  });
}

template <class T>
void add_gradients(const ExecutionSpace& space, T* sum, const T* a, const T* b, std::int64_t n) {
  for_elements("add gradients", space, n, are_aligned(sum, a, b),
               AddForward<T, Activation::None>{sum, a, b});
}

template <class T>
void accumulate_parts(const ExecutionSpace& space, std::span<const GradientPart> parts,
                      bool first) {
  if (parts.size() > kMostParts) {
    accumulate_parts<T>(space, parts.first(kMostParts), first);
    return accumulate_parts<T>(space, parts.subspan(kMostParts), first);
  }
  Accumulate<T> all{.parts = {}, .first = first, .aligned = true};
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [total, part, n] = parts[i];
    all.parts[i] = {total, reinterpret_cast<const T*>(part), n, blocks};
    all.aligned = all.aligned && are_aligned(total, part);
    blocks += (n + kBlock - 1) / kBlock;
  }
  device::parallel("accumulate", space, blocks, all);
}

template <class T>
void convert(const ExecutionSpace& space, T* y, const float* x, std::int64_t n) {
  for_elements("convert", space, n, are_aligned(y, x), Convert<T, float>{y, x});
}

template <class T>
void widen(const ExecutionSpace& space, float* y, const T* x, std::int64_t n) {
  for_elements("widen", space, n, are_aligned(y, x), Convert<float, T>{y, x});
}

template <class T>
void move_average(const ExecutionSpace& space, std::int64_t elements, float* average,
                  const T* value, const StepState* step) {
  const auto move = KOKKOS_LAMBDA(std::int64_t i) {
    if (step->skips != 0) return;
    const float part = 1.0f - step->values.average_decay;
    average[i] -= (average[i] - to_float(value[i])) * part;
  };
  device::parallel("moving average", space, elements, move);
}

template <class T>
void round_average(const ExecutionSpace& space, std::int64_t elements, const float* average,
                   T* rounded) {
  const auto round = KOKKOS_LAMBDA(std::int64_t i) { rounded[i] = store_as<T>(average[i]); };
  device::parallel("round average", space, elements, round);
}

template <class T>
void exchange(const ExecutionSpace& space, std::int64_t elements, T* a, T* b) {
  const auto swap = KOKKOS_LAMBDA(std::int64_t i) {
    const T value = a[i];
    a[i] = b[i];
    b[i] = value;
  };
  device::parallel("exchange", space, elements, swap);
}

MILLRACE_INSTANTIATE(activation_forward)
MILLRACE_INSTANTIATE(activation_backward)
MILLRACE_INSTANTIATE(add_forward)
MILLRACE_INSTANTIATE(add_gradients)
MILLRACE_INSTANTIATE(accumulate_parts)
MILLRACE_INSTANTIATE(convert)
MILLRACE_INSTANTIATE(widen)
MILLRACE_INSTANTIATE(move_average)
MILLRACE_INSTANTIATE(round_average)
MILLRACE_INSTANTIATE(exchange)

}  // namespace millrace::ops
