// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// Residual network with grouped 3x3 convolutions: Xie et al. 2017, "Aggregated residual
/// transformations", table 1 (ImageNet: 14, 26, 50, 101, 152; CIFAR: 11, 29, 38, 47, 56, 65).
/// Layers are named by `build_residual`; squeeze-and-excite ops are `b<stage>/<block>/SE...`.
[[nodiscard]] Graph build_resnext(const ModelOptions& options);

}  // namespace millrace::models
