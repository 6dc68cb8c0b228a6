// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "models/model_options.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {

/// Red, green and blue: (byte - mean) / deviation.
struct KerasStatistics {
  std::array<double, 3> mean{};
  std::array<double, 3> deviation{};
};

/// How a network of Keras prepares the bytes of an image before its first convolution.
struct KerasInput {
  std::optional<KerasStatistics> statistics = {};  ///< none: the file does not say
  std::optional<std::int64_t> image_side = {};     ///< of square images; none: of any size
};

/// The layers Rescaling and Normalization of an EfficientNet as one step, from the configuration in
/// the file and the mean and variance among its tensors. Without a configuration the network is
/// taken for that of keras.applications; where its variances are ImageNet's deviations, as
/// published, images are divided by them, not by their roots. ResNets there are given images that
/// are prepared already. The size of the images is that of the layer InputLayer. Errors: Data,
/// naming the layer, if another one changes the images first, or pools otherwise than by the mean;
/// if images are not square; or if a variance is not positive.
[[nodiscard]] KerasInput keras_input(const TensorFile& file, const models::ModelOptions& model);

}  // namespace millrace::io
