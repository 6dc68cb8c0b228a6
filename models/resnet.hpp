// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// Residual network. Version 1.5 (stride in the 3x3): He et al. 2015, "Deep residual learning",
/// tables 1 (ImageNet: 10, 14, 18, 26, 34, 50, 101, 152, and 200 of the TPU trainer) and 6 (CIFAR:
/// 6n+2 basic, 9n+2 bottleneck). Version 2 (normalization and ReLU first): ImageNet 50, 101, 152.
/// Layers are named by `build_residual`.
[[nodiscard]] Graph build_resnet(const ModelOptions& options);

}  // namespace millrace::models
