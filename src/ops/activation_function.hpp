// SPDX-License-Identifier: Apache-2.0
//
// The formulas of the activations. An activation without one does not compile.
#pragma once

#include "core/activation.hpp"
#include "core/bfloat16.hpp"
#include "core/portable.hpp"
#include "ops/exponential.hpp"

namespace millrace::ops {

/// f(z) and dy * f'(z). Both propagate NaNs. `kExact`: they map values of a storage type to values
/// of that type, so that results need no rounding.
template <Activation kFn>
struct Formula;

template <>
struct Formula<Activation::None> {
  static constexpr bool kExact = true;
  static MILLRACE_FUNCTION float value(float z) { return z; }
  static MILLRACE_FUNCTION float gradient(float dy, float) { return dy; }
};

template <>
struct Formula<Activation::Relu> {
  static constexpr bool kExact = true;
  static MILLRACE_FUNCTION float value(float z) { return z < 0.0f ? 0.0f : z; }
  static MILLRACE_FUNCTION float gradient(float dy, float z) { return z > 0.0f ? dy : 0.0f; }
};

template <>
struct Formula<Activation::Swish> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z) { return z / (1.0f + exponential(-z)); }
  static MILLRACE_FUNCTION float gradient(float dy, float z) {
    const float s = 1.0f / (1.0f + exponential(-z));
    return dy * (s * (1.0f + z * (1.0f - s)));
  }
};

template <>
struct Formula<Activation::Sigmoid> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z) { return 1.0f / (1.0f + exponential(-z)); }
  static MILLRACE_FUNCTION float gradient(float dy, float z) {
    const float s = 1.0f / (1.0f + exponential(-z));
    return dy * (s * (1.0f - s));
  }
};

template <Activation kFn>
inline constexpr bool kExact = Formula<kFn>::kExact;

/// f(z) converted to T, for a z already rounded to T.
template <class T, Activation kFn>
MILLRACE_FUNCTION T store_fn(float z) {
  if constexpr (kExact<kFn>) return store_exact<T>(Formula<kFn>::value(z));
  if constexpr (!kExact<kFn>) return store_as<T>(Formula<kFn>::value(z));
}

/// dy * f'(z) rounded to T, for a dy that T represents exactly.
template <class T, Activation kFn>
MILLRACE_FUNCTION float rounded_fn_gradient(float dy, float z) {
  if constexpr (kExact<kFn>) return Formula<kFn>::gradient(dy, z);
  if constexpr (!kExact<kFn>) return rounded_as<T>(Formula<kFn>::gradient(dy, z));
}

/// Calls function.template operator()<kFn>() for the run-time value `fn`.
template <class Function>
decltype(auto) dispatch_fn(Activation fn, Function&& function) {
  switch (fn) {
    case Activation::Relu:
      return function.template operator()<Activation::Relu>();
    case Activation::Swish:
      return function.template operator()<Activation::Swish>();
    case Activation::Sigmoid:
      return function.template operator()<Activation::Sigmoid>();
    case Activation::None:
      break;
  }
  return function.template operator()<Activation::None>();
}

}  // namespace millrace::ops
