// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "models/registry.hpp"

namespace millrace::models {

/// EfficientNet (Tan and Le 2019, table 1), sizes B0 ... B7 and the seed trainer's `cifar`; case
/// does not matter and 0 ... 7 stand for B0 ... B7.
///
/// Layers: `block0`; a block that adds its input is one layer, `block2b`; the others are `block2a`
/// (expansion, absent at ratio 1), `block2a/b` (kxk convolution), `block2a/SE` and `block2a/c`
/// (projection); then `Top` and `loss`. Ops have the same names either way (`block2b/b/conv`,
/// `block2b/SE`), so that they can be cut at and their parameters named alike.
///
/// `cifar` does not halve the image in block0 and block2a. The seed trainer means to, but compares
/// the size's name in the wrong case.
[[nodiscard]] Graph build_efficientnet(const ModelOptions& options);

/// Height and width of the images that the size was made for.
[[nodiscard]] std::int64_t efficientnet_image_size(std::string_view size);

}  // namespace millrace::models
