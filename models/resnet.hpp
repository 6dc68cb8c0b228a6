// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry.hpp"

namespace millrace::models {

/// Residual network, version 1.5 (stride in the 3x3): He et al. 2015, "Deep residual learning",
/// tables 1 (ImageNet: 10, 14, 18, 26, 34, 50, 101, 152) and 6 (CIFAR: 6n+2 basic, 9n+2
/// bottleneck). Layers are named `b0`, `b<stage>/<block>`, `b<stage>/<block>/relu`, `reduce_mean`,
/// `fc1`, `loss`.
[[nodiscard]] Graph build_resnet(const ModelOptions& options);

}  // namespace millrace::models
