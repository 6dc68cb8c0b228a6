// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/activation_function.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

struct StepState;

/// y = fn(x); y may be x. Here and in the gradient, the bounds of a Clip are rounded to T.
template <class T>
void activation_forward(const device::ExecutionSpace& space, T* y, const T* x, std::int64_t n,
                        Activation fn, ActivationNumbers numbers = {});

/// dx = dy * fn'(x); dx may be dy. x may also be the output y if has_gradient_by_output(fn).
template <class T>
void activation_backward(const device::ExecutionSpace& space, T* dx, const T* dy, const T* x,
                         std::int64_t n, Activation fn, ActivationNumbers numbers = {});

/// y = fn(a + b), with the sum rounded to T before fn, a function that is fused.
template <class T>
void add_forward(const device::ExecutionSpace& space, T* y, const T* a, const T* b, std::int64_t n,
                 Activation fn);

/// sum = a + b, rounded to T. Adds two contributions to one gradient. sum may be a or b.
template <class T>
void add_gradients(const device::ExecutionSpace& space, T* sum, const T* a, const T* b,
                   std::int64_t n);

/// A gradient that is summed over micro-batches, and that of one of them in a storage type.
struct GradientPart {
  float* total = nullptr;
  const std::byte* part = nullptr;
  std::int64_t elements = 0;
};

/// total = part if `first`, else total + part, for all tensors: one launch for kMostParts of them.
template <class T>
void accumulate_parts(const device::ExecutionSpace& space, std::span<const GradientPart> parts,
                      bool first);
inline constexpr std::size_t kMostParts = 64;

/// The same for one tensor.
template <class T>
void accumulate(const device::ExecutionSpace& space, float* total, const T* part, std::int64_t n,
                bool first) {
  const GradientPart one{total, reinterpret_cast<const std::byte*>(part), n};
  accumulate_parts<T>(space, std::span(&one, 1), first);
}

/// y = x rounded to T.
template <class T>
void convert(const device::ExecutionSpace& space, T* y, const float* x, std::int64_t n);

/// y = x converted to float32, which is exact.
template <class T>
void widen(const device::ExecutionSpace& space, float* y, const T* x, std::int64_t n);

/// average = average - (average - value) x (1 - decay) with the decay of the step, element by
/// element: the moving average of TensorFlow. Nothing in a step that is skipped. `T` is a storage
/// type.
template <class T>
void move_average(const device::ExecutionSpace& space, std::int64_t elements, float* average,
                  const T* value, const StepState* step);

/// Rounds averages to the nearest value of a storage type.
template <class T>
void round_average(const device::ExecutionSpace& space, std::int64_t elements, const float* average,
                   T* rounded);

/// Exchanges the values of two arrays.
template <class T>
void exchange(const device::ExecutionSpace& space, std::int64_t elements, T* a, T* b);

}  // namespace millrace::ops
