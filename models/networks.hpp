// SPDX-License-Identifier: Apache-2.0
//
// The families of networks, one function each; a file each builds them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.hpp"
#include "models/model_options.hpp"

namespace millrace::models {

/// Residual network. Version 1.5 (stride in the 3x3): He et al. 2015, "Deep residual learning",
/// tables 1 (ImageNet: 10, 14, 18, 26, 34, 50, 101, 152, and 200 of the TPU trainer) and 6 (CIFAR:
/// 6n+2 basic, 9n+2 bottleneck). Version 1 has the stride in the first
/// convolution of a block. Version 2 (normalization and ReLU first): ImageNet 50, 101, 152.
/// Layers are named by `build_residual`.
[[nodiscard]] Graph build_resnet(const ModelOptions& options);

/// Residual network with grouped 3x3 convolutions: Xie et al. 2017, "Aggregated residual
/// transformations", table 1 (ImageNet: 14, 26, 50, 101, 152; CIFAR: 11, 29, 38, 47, 56, 65).
/// Layers are named by `build_residual`; squeeze-and-excite ops are `b<stage>/<block>/SE...`.
[[nodiscard]] Graph build_resnext(const ModelOptions& options);

/// SqueezeNet 1.0 (Iandola et al. 2016, table 1) without normalization, optionally with the simple
/// bypass of that paper. Layers have the published names: `conv1`, `pool1`, `fire2` ... `fire9`
/// with `pool4` and `pool8` in between, `drop9`, `conv10` and `pool10` (ImageNet) or `fc10`
/// (CIFAR), `loss`.
///
/// For CIFAR the head is that of the IPU trainer: two units per class with a ReLU, which are used
/// as 2 * options.classes logits.
[[nodiscard]] Graph build_squeezenet(const ModelOptions& options);

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

/// The published sizes of each family for a task.
[[nodiscard]] std::vector<std::string> resnet_sizes(Task task);
[[nodiscard]] std::vector<std::string> resnext_sizes(Task task);
[[nodiscard]] std::vector<std::string> squeezenet_sizes(Task task);
[[nodiscard]] std::vector<std::string> efficientnet_sizes(Task task);

/// Height and width of the images that the size is designed for.
[[nodiscard]] std::int64_t efficientnet_image_size(std::string_view size);

}  // namespace millrace::models
