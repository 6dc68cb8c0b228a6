// SPDX-License-Identifier: Apache-2.0
//
// What a run says of its images: how they are changed in training, and how they become floats.
// io/images and io/mixing.hpp do it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace millrace::run {

/// Changes of training images besides crop and mirror; io/images/augmentation.hpp has their order.
struct Augmentation {
  /// RandAugment (Cubuk et al. 2019): this many operations of a common magnitude; 0: off.
  std::int32_t operations = 0;
  std::int32_t magnitude = 9;  ///< 0 .. kMostMagnitude
  double erasing = 0.0;        ///< probability that a box is erased
  // Color jitter: factors from 1 - x to 1 + x; the hue turns by -x to x of the circle.
  double brightness = 0.0;
  double contrast = 0.0;
  double saturation = 0.0;
  double hue = 0.0;

  [[nodiscard]] bool jitters() const noexcept {
    return brightness > 0.0 || contrast > 0.0 || saturation > 0.0 || hue > 0.0;
  }
  [[nodiscard]] bool changes_pixels() const noexcept { return operations > 0 || jitters(); }
  friend bool operator==(const Augmentation&, const Augmentation&) = default;
};

inline constexpr std::int32_t kMostMagnitude = 30;
inline constexpr std::int32_t kMostOperations = 16;

/// Normalization of red, green and blue: always (byte - mean) x scale.
enum class ImageNormalisation : std::uint8_t {
  MeanOnly,    ///< IPU trainer's default, both Habana trainers: minus 123.68, 116.78, 103.94
  Torch,       ///< `normalise-input`, SURFsara: 255 x (.485 .456 .406), 255 x (.229 .224 .225)
  Nvidia2019,  ///< TensorFlow input of 2019: as MeanOnly, over 255
  Dali2019,    ///< DALI input of 2019: 121 115 100, 70 68 71
  Nvidia,      ///< today: 123.68 116.28 103.53, 58.395 57.12 57.385
};

/// Partner and share of mixup; see io/mixing.hpp. Cutmix is the same for both forms.
enum class MixingForm { Reversed, Rolled };

/// Mixing of training images and their labels.
struct MixingConfig {
  MixingForm form = MixingForm::Rolled;
  double mixup_alpha = 0.0;    ///< shares are drawn from Beta(alpha, alpha); 0: no mixup
  double cutmix_lambda = 1.0;  ///< share of the image that stays; 1: no cutmix
  [[nodiscard]] bool on() const { return mixup_alpha > 0.0 || cutmix_lambda < 1.0; }
  friend bool operator==(const MixingConfig&, const MixingConfig&) = default;
};
/// Errors: Config, for an alpha or lambda out of range, and for micro-batches of one image.
void check_mixing(const MixingConfig& config, std::int64_t batch_size);

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

}  // namespace millrace::run
