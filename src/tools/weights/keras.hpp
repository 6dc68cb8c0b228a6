// SPDX-License-Identifier: Apache-2.0
//
// What files of Keras say besides their tensors: how a network prepares images, and numbers in
// place of names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/images/presets.hpp"
#include "models/model_options.hpp"
#include "tools/weights/names.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {

/// How a network of Keras prepares the bytes of an image before its first convolution.
struct KerasInput {
  std::optional<ColourStatistics> statistics = {};  ///< none: the file does not say
  std::optional<std::int64_t> image_side = {};      ///< of square images; none: of any size
};

/// The layers Rescaling and Normalization of an EfficientNet as one step, from the configuration in
/// the file and the mean and variance among its tensors. Without a configuration the network is
/// taken for that of keras.applications; where its variances are ImageNet's deviations, as
/// published, images are divided by them, not by their roots. ResNets there are given images that
/// are prepared already. The size of the images is that of the layer InputLayer. Errors: Data,
/// naming the layer, if another one changes the images first, or pools otherwise than by the mean;
/// if images are not square; or if a variance is not positive.
[[nodiscard]] KerasInput keras_input(const TensorFile& file, const models::ModelOptions& model);

// The numbers that Keras 3 writes instead of names (save_weights, and the archive of save). The
// variable `moving_mean` of the layer `conv2_block1_1_bn` is `batch_normalization_1/vars/2`: the
// class of the layer, how many layers of this class come before it in model.layers, and the place
// of the variable in its layer. Since Keras 3.6 the group `vars` has an attribute with the layer's
// name; before, only the order of the layers tells which one it is.

/// What the variable `number` of a layer is, by the layer's class: "moving_mean:0" for "2" of
/// "batch_normalization_1". Empty for other classes than those of the networks here.
[[nodiscard]] std::string_view keras_variable(std::string_view layer, std::string_view number);

/// Whether the layers in this file have no names: its tensors are like "conv2d_1/vars/0".
[[nodiscard]] bool has_numbers(const TensorFile& file);

/// Gives the parameters of a network of keras.applications, which have their names, those of a file
/// whose layers have none.
void replace_by_numbers(ForeignParameters& parameters);

/// What the bias beside the kernel of this name is called, in either way.
[[nodiscard]] std::string bias_beside(std::string_view kernel);

}  // namespace millrace::io
