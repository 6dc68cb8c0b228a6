// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace millrace {

/// Elementwise functions. None is the identity. Their formulas are in ops/activation_function.hpp.
/// Those behind Sigmoid are kernels of their own and are fused into no other kernel.
enum class Activation { None, Relu, Swish, Sigmoid, Clip, LeakyRelu, HardSigmoid, HardSwish };

/// Numbers of a function. Clip: the bounds `a` and `b`. LeakyRelu: the slope `a` below 0.
/// HardSigmoid: a z + b, between 0 and 1. The others have none.
struct ActivationNumbers {
  float a = 0.0f;
  float b = 0.0f;
  friend bool operator==(const ActivationNumbers&, const ActivationNumbers&) = default;
};

[[nodiscard]] constexpr bool is_fused(Activation function) {
  return function <= Activation::Sigmoid;
}

/// Whether the gradient follows from the output as well as from the input.
[[nodiscard]] constexpr bool has_gradient_by_output(Activation function) {
  return function == Activation::Relu || function == Activation::Clip ||
         function == Activation::LeakyRelu;
}

[[nodiscard]] constexpr std::string_view name_of(Activation function) {
  switch (function) {
    case Activation::None:
      return "none";
    case Activation::Relu:
      return "relu";
    case Activation::Swish:
      return "swish";
    case Activation::Sigmoid:
      return "sigmoid";
    case Activation::Clip:
      return "clip";
    case Activation::LeakyRelu:
      return "leaky_relu";
    case Activation::HardSigmoid:
      return "hard_sigmoid";
    case Activation::HardSwish:
      return "hard_swish";
  }
  return "?";
}

}  // namespace millrace
