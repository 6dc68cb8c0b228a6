// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "models/graph.hpp"

namespace millrace::models {

struct SqueezeExcite {
  std::int64_t squeezed = 1;  ///< channels between its two convolutions
  ActivationKind activation = ActivationKind::Relu;
  Initialiser init;  ///< of both kernels
};

/// x with each channel scaled by what two 1x1 convolutions with bias make of the means of all
/// channels (Hu et al. 2018). Its ops are `name` (the mean), `name`/reduce, /act, /expand,
/// /sigmoid, /scale; an empty name means the current layer.
[[nodiscard]] ValueId squeeze_excite(GraphBuilder& builder, std::string_view name, ValueId x,
                                     const SqueezeExcite& squeeze);

}  // namespace millrace::models
