// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace millrace::io {

/// How the images of a validation become what a network reads. Checkpoints record it, so that other
/// images can be prepared in the same way without the data set.
struct Preparation {
  /// The row of image_presets() by which images are resized and cropped; "" for sets whose images
  /// have the network's size already.
  std::string preset = {};
  /// With a preset: the shorter side of a scaled image, whose center is cropped.
  std::int32_t shorter_side = 0;
  /// Whether each image is normalized by its own mean and deviation instead, over all its values;
  /// the deviation is at least 1 / sqrt(number of values).
  bool by_image = false;
  /// Red, green and blue: (byte - mean) / deviation.
  std::array<double, 3> mean{};
  std::array<double, 3> deviation{1.0, 1.0, 1.0};
  friend bool operator==(const Preparation&, const Preparation&) = default;
};

}  // namespace millrace::io
