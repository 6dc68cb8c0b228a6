// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/bfloat16.hpp"
#include "core/portable.hpp"
#include "ops/exponential.hpp"

namespace millrace::ops {

/// Elementwise functions that can be fused into other kernels. None is the identity. All of them
/// propagate NaNs.
enum class Fn { None, Relu, Swish, Sigmoid };

template <Fn kFn>
MILLRACE_FUNCTION float apply_fn(float z) {
  if constexpr (kFn == Fn::Relu) return z < 0.0f ? 0.0f : z;
  if constexpr (kFn == Fn::Sigmoid) return 1.0f / (1.0f + exponential(-z));
  if constexpr (kFn == Fn::Swish) return z / (1.0f + exponential(-z));
  if constexpr (kFn == Fn::None) return z;
}

/// dy * f'(z).
template <Fn kFn>
MILLRACE_FUNCTION float fn_gradient(float dy, float z) {
  if constexpr (kFn == Fn::Relu) return z > 0.0f ? dy : 0.0f;
  if constexpr (kFn == Fn::Sigmoid) {
    const float s = 1.0f / (1.0f + exponential(-z));
    return dy * (s * (1.0f - s));
  }
  if constexpr (kFn == Fn::Swish) {
    const float s = 1.0f / (1.0f + exponential(-z));
    return dy * (s * (1.0f + z * (1.0f - s)));
  }
  if constexpr (kFn == Fn::None) return dy;
}

/// True if f and its gradient map values of a storage type to values of that type, so that results
/// need no rounding.
template <Fn kFn>
inline constexpr bool kExact = kFn == Fn::None || kFn == Fn::Relu;

/// f(z) converted to T, for a z already rounded to T.
template <class T, Fn kFn>
MILLRACE_FUNCTION T store_fn(float z) {
  if constexpr (kExact<kFn>) return store_exact<T>(apply_fn<kFn>(z));
  if constexpr (!kExact<kFn>) return store_as<T>(apply_fn<kFn>(z));
}

/// dy * f'(z) rounded to T, for a dy that T represents exactly.
template <class T, Fn kFn>
MILLRACE_FUNCTION float rounded_fn_gradient(float dy, float z) {
  if constexpr (kExact<kFn>) return fn_gradient<kFn>(dy, z);
  if constexpr (!kExact<kFn>) return rounded_as<T>(fn_gradient<kFn>(dy, z));
}

/// Calls function.template operator()<kFn>() for the run-time value `fn`.
template <class Function>
decltype(auto) dispatch_fn(Fn fn, Function&& function) {
  switch (fn) {
    case Fn::Relu:
      return function.template operator()<Fn::Relu>();
    case Fn::Swish:
      return function.template operator()<Fn::Swish>();
    case Fn::Sigmoid:
      return function.template operator()<Fn::Sigmoid>();
    case Fn::None:
      break;
  }
  return function.template operator()<Fn::None>();
}

}  // namespace millrace::ops
