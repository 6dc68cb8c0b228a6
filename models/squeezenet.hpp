// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry.hpp"

namespace millrace::models {

/// SqueezeNet 1.0 (Iandola et al. 2016, table 1) without norms, optionally with their simple
/// bypass. Layers are named as in their published net: `conv1`, `pool1`, `fire2` ... `fire9` with
/// `pool4` and `pool8` between, `drop9`, `conv10` and `pool10` (ImageNet) or `fc10` (CIFAR),
/// `loss`.
///
/// For CIFAR the seed trainer's head is kept: the logits are the ReLU of twice as many units as
/// there are classes, so `classes` of the graph is 2 * options.classes.
[[nodiscard]] Graph build_squeezenet(const ModelOptions& options);

}  // namespace millrace::models
