// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "models/graph.hpp"

namespace millrace::models {

struct SqueezeExcite {
  std::int64_t squeezed = 1;  ///< channels between its two convolutions
  Activation activation = Activation::Relu;
  Initialiser init;  ///< of both kernels
};

/// Squeeze-and-excite (Hu et al. 2018): applies two 1x1 convolutions with bias to the channel means
/// of x, and scales each channel of x by the result. The ops are `name` (the mean), `name`/reduce,
/// /act, /expand, /sigmoid and /scale. An empty name means the current layer.
[[nodiscard]] ValueId squeeze_excite(GraphBuilder& builder, std::string_view name, ValueId x,
                                     const SqueezeExcite& squeeze);

}  // namespace millrace::models
