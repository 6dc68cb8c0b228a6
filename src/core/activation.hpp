// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace millrace {

/// Elementwise functions, alone or fused into other kernels. None is the identity. Their formulas
/// are in ops/activation_function.hpp.
enum class Activation { None, Relu, Swish, Sigmoid };

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
  }
  return "?";
}

}  // namespace millrace
