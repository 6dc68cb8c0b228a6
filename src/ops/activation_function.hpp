// SPDX-License-Identifier: Apache-2.0
//
// The formulas of the activations. An activation without one does not compile.
#pragma once

#include <bit>
#include <cstdint>

#include "core/activation.hpp"
#include "core/bfloat16.hpp"
#include "core/error.hpp"
#include "core/portable.hpp"

namespace millrace::ops {

/// 2^n as a float, for n from -126 to 127; unspecified for other n.
MILLRACE_FUNCTION float power_of_two(std::int32_t n) {
  const std::uint32_t bits = static_cast<std::uint32_t>(n + 127) << 23;
  return std::bit_cast<float>(bits);
}

/// e^x, infinity on overflow, NaN for NaN.
///
/// On cores to within one unit in the last place: 0 below -104 (where subnormal floats are zero,
/// below -87.3). Has no branches or calls, so that loops over it vectorize. Method: x = n ln 2 + r
/// with |r| <= ln 2 / 2, and e^r by the polynomial of Cephes' expf (Moshier 1989).
///
/// On GPUs two instructions, to 2^-22 + |x| 2^-23 of its size; 0 below -87.3.
MILLRACE_FUNCTION float exponential(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
#if MILLRACE_PTX
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2e));
  return y;
#elif MILLRACE_AMDGCN
  return __builtin_exp2f(x * kLog2e);
#else
  constexpr float kLn2High = 0.693359375f;  // has few bits, so that its product with n is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer
  constexpr std::uint32_t kRounderBits = 0x4b400000u;
  const float low = x < -104.0f ? -104.0f : x;
  const float within = low > 89.0f ? 89.0f : low;
  const float rounded = within * kLog2e + kRounder;
  const float n = rounded - kRounder;
  const float r = (within - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const auto bits = std::bit_cast<std::uint32_t>(rounded);
  const auto exponent = static_cast<std::int32_t>(bits - kRounderBits);
  // In two steps, because 2^exponent may not be a float.
  const std::int32_t half = exponent >> 1;
  return p * power_of_two(half) * power_of_two(exponent - half);
#endif
}

/// 1 / (1 + e^-z); on GPUs to (|z| + 4) 2^-23 of its size, and 0 below -87.3.
MILLRACE_FUNCTION float sigmoid(float z) { return fast_quotient(1.0f, 1.0f + exponential(-z)); }

/// The derivative of swish from s = sigmoid(z); on GPUs to (|z| + 4) 2^-22.
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
    return fast_quotient(z, 1.0f + exponential(-z));  // as near as sigmoid(z)
  }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers = {}) {
    return dy * swish_slope(z, sigmoid(z));
  }
};

template <>
struct Formula<Activation::Sigmoid> {
  static constexpr bool kExact = false;
  static MILLRACE_FUNCTION float value(float z, ActivationNumbers = {}) { return sigmoid(z); }
  static MILLRACE_FUNCTION float gradient(float dy, float z, ActivationNumbers = {}) {
    const float s = sigmoid(z);
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
