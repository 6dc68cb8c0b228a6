// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// EfficientNet (Tan and Le 2019, table 1): sizes B0 ... B7 and `cifar` of the IPU trainer. Upper
/// and lower case are equal, and 0 ... 7 mean B0 ... B7.
///
/// Layers: `block0`; then the blocks; then `Top` and `loss`. A block that adds its input is one
/// layer, such as `block2b`. Other blocks are four: `block2a` (expansion, absent at ratio 1),
/// `block2a/b` (kxk convolution), `block2a/SE` and `block2a/c` (projection). Op names follow the
/// same pattern in both (`block2b/b/conv`, `block2b/SE`).
///
/// `cifar` does not halve the image in block0 and block2a. The IPU trainer intends the same but
/// halves it there, because it compares the size's name in the wrong case.
[[nodiscard]] Graph build_efficientnet(const ModelOptions& options);

/// Height and width of the images that the size is designed for.
[[nodiscard]] std::int64_t efficientnet_image_size(std::string_view size);

}  // namespace millrace::models
