// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// SqueezeNet 1.0 (Iandola et al. 2016, table 1) without normalization, optionally with the simple
/// bypass of that paper. Layers have the published names: `conv1`, `pool1`, `fire2` ... `fire9`
/// with `pool4` and `pool8` in between, `drop9`, `conv10` and `pool10` (ImageNet) or `fc10`
/// (CIFAR), `loss`.
///
/// For CIFAR the head is that of the IPU trainer: two units per class with a ReLU, which are used
/// as 2 * options.classes logits.
[[nodiscard]] Graph build_squeezenet(const ModelOptions& options);

}  // namespace millrace::models
