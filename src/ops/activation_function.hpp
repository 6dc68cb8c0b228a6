// SPDX-License-Identifier: Apache-2.0
//
// The formulas of the activations. An activation without one does not compile.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/activation.hpp"
#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "core/portable.hpp"

namespace millrace::ops {

/// e^-x of a number x, to (|x| + 2) 2^-23 of its size; infinity on overflow, which on cores begins
/// at -88.3, and at most 2^-125 above 87.3. Has no branches or calls, so that loops over it
/// vectorize.
///
/// On cores 2^t = 2^n 2^f with t = -x log2 e, an integer n and |f| <= 1/2, and 2^f by a polynomial
/// that is 1 at 0 and nowhere off by more than 1.1e-7. Bounds are minima of signed integers, a
/// single instruction, which leave negative floats as they are. Of floats they would be branches
/// for the compiler, with divisions of their own. They make numbers of NaNs: callers multiply by x,
/// too.
MILLRACE_FUNCTION float exponential_of_minus(float x) {
  constexpr float kMinusLog2e = -1.44269504088896341f;
#if MILLRACE_PTX
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kMinusLog2e));
  return y;
#elif MILLRACE_AMDGCN
  return __builtin_exp2f(x * kMinusLog2e);
#else
  const auto at_most = [](float a, float bound) {
    return std::bit_cast<float>(
        std::min(std::bit_cast<std::int32_t>(a), std::bit_cast<std::int32_t>(bound)));
  };
  // Adding 1.5 x 2^23 rounds to an integer. With the bias of exponents the lowest bits of the sum
  // are the exponent of 2^n; at 128 it is that of infinity.
  constexpr float kRounder = 12582912.0f + 127.0f;
  const float t = at_most(at_most(x, 87.3f) * kMinusLog2e, 128.0f);
  const float rounded = t + kRounder;
  const float f = t - (rounded - kRounder);
  float p = 1.32647285e-3f;
  p = p * f + 9.67151392e-3f;
  p = p * f + 5.55073358e-2f;
  p = p * f + 2.40222424e-1f;
  p = p * f + 6.93147004e-1f;
  p = p * f + 1.0f;
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) << 23);
#endif
}

/// 1 / (1 + e^-z) of a number z, to (|z| + 4) 2^-23 of its size; on GPUs 0 below -87.3.
MILLRACE_FUNCTION float sigmoid(float z) {
  return fast_quotient(1.0f, 1.0f + exponential_of_minus(z));
}

/// The derivative of swish from s = sigmoid(z), to (|z| + 4) 2^-22.
MILLRACE_FUNCTION float swish_slope(float z, float s) {
  return s * multiply_add(z, 1.0f - s, 1.0f);
}

/// f(z) and dy * f'(z); the last argument has the numbers of f. Both propagate NaNs; at a
/// kink the gradient is PyTorch's. `kExact`: they map values of a storage type to values of that
/// type, so that results need no rounding.
template <Activation kFn>
struct Formula;

template <>
struct Formula<Activation::None> {
  static constexpr bool kExact = true;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers = {}) { return z; }
  static MILLRACE_FUNCTION float gradient(float dy, float, ActivationNumbers = {}) { return dy; }
};

template <>
struct Formula<Activation::Relu> {
  static constexpr bool kExact = true;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers = {}) {
#if MILLRACE_PTX
    float y;  // +0 for -0
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(z), "f"(0.0f));
    return y;
#else
    return z < 0.0f ? 0.0f : z;
#endif
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers = {}) {
    return z > 0.0f ? dy : 0.0f;
  }
};

template <>
struct Formula<Activation::Swish> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers = {}) {
    return fast_quotient(z, 1.0f + exponential_of_minus(z));  // as near as sigmoid(z)
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers = {}) {
    return dy * swish_slope(z, sigmoid(z));
  }
};

template <>
struct Formula<Activation::Sigmoid> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers = {}) {
    return z == z ? sigmoid(z) : z;
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers = {}) {
    const float s = value(z);
    return dy * (s * (1.0f - s));
  }
};

/// Exact because its bounds are values of the storage type. z may also be f(z).
template <>
struct Formula<Activation::Clip> {
  static constexpr bool kExact = true;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers n) {
    return z < n.a ? n.a : z > n.b ? n.b : z;
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers n) {
    return z > n.a && z < n.b ? dy : 0.0f;
  }
};

/// In the gradient z may also be f(z): the slope is not negative.
template <>
struct Formula<Activation::LeakyRelu> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers n) {
    return z < 0.0f ? n.a * z : z;
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers n) {
    return z > 0.0f ? dy : n.a * dy;
  }
};

template <>
struct Formula<Activation::HardSigmoid> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers n) {
    const float line = n.a * z + n.b;
    return line < 0.0f ? 0.0f : line > 1.0f ? 1.0f : line;
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers n) {
    const float line = n.a * z + n.b;
    return line > 0.0f && line < 1.0f ? n.a * dy : 0.0f;
  }
};

/// z min(max(z + 3, 0), 6) / 6, of Howard et al. 2019 (MobileNetV3).
template <>
struct Formula<Activation::HardSwish> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers = {}) {
    const float ramp = z + 3.0f;
    return z * (ramp < 0.0f ? 0.0f : ramp > 6.0f ? 6.0f : ramp) * (1.0f / 6.0f);
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers = {}) {
    return z <= -3.0f ? 0.0f : z < 3.0f ? dy * (z * (1.0f / 3.0f) + 0.5f) : dy;
  }
};

template <Activation kFn>
inline constexpr bool kExact = Formula<kFn>::kExact;

/// f(z) converted to T, for a z already rounded to T.
template <class T, Activation kFn>
MILLRACE_FUNCTION T store_fn(float z, ActivationNumbers n = {}) {
  if constexpr (kExact<kFn>) return store_exact<T>(Formula<kFn>::value(z, n));
  if constexpr (!kExact<kFn>) return store_as<T>(Formula<kFn>::value(z, n));
}

/// dy * f'(z) rounded to T, for a dy that T represents exactly.
template <class T, Activation kFn>
MILLRACE_FUNCTION float rounded_fn_gradient(float dy, float z, ActivationNumbers n = {}) {
  if constexpr (kExact<kFn>) return Formula<kFn>::gradient(dy, z, n);
  if constexpr (!kExact<kFn>) return rounded_as<T>(Formula<kFn>::gradient(dy, z, n));
}

/// Calls function.template operator()<kFn>() for the run-time value `fn`, a function that is fused.
template <class Function>
decltype(auto) dispatch_fn(Activation fn, Function&& function) {
  MILLRACE_ASSERT(is_fused(fn));
  switch (fn) {
    case Activation::Relu:
      return function.template operator()<Activation::Relu>();
    case Activation::Swish:
      return function.template operator()<Activation::Swish>();
    case Activation::Sigmoid:
      return function.template operator()<Activation::Sigmoid>();
    case Activation::None:
    case Activation::Clip:  // these have cases in dispatch_any_fn
    case Activation::LeakyRelu:
    case Activation::HardSigmoid:
    case Activation::HardSwish:
      break;
  }
  return function.template operator()<Activation::None>();
}

/// The same for any function.
template <class Function>
decltype(auto) dispatch_any_fn(Activation fn, Function&& function) {
  switch (fn) {
    case Activation::Clip:
      return function.template operator()<Activation::Clip>();
    case Activation::LeakyRelu:
      return function.template operator()<Activation::LeakyRelu>();
    case Activation::HardSigmoid:
      return function.template operator()<Activation::HardSigmoid>();
    case Activation::HardSwish:
      return function.template operator()<Activation::HardSwish>();
    default:
      return dispatch_fn(fn, function);
  }
}

}  // namespace millrace::ops
