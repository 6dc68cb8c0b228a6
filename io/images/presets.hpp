// SPDX-License-Identifier: Apache-2.0
//
// The published ways to prepare ImageNet, as lines of one table:
//
//   preset    crop: by, area, aspect, attempts   filter                 centre   normalisation
//   tf        height, 5-100 %, .75-1.33, 100     bilinear, legacy       down     MeanOnly
//   nvidia    area, 5-100 %, .75-1.33, 100       bilinear, half-pixel   down     Nvidia
//   dali2019  area, 10-100 %, .8-1.25, 100       bilinear, half-pixel   down     Dali2019
//   tpu       height, 8-100 %, 3/4-4/3, 1        bicubic, legacy        up       Torch
//   torch     area, 8-100 %, 3/4-4/3, 10         bilinear, antialiased  even     Torch
//
// Validation scales the shorter side to 256/224 of the image's in all of them. What a recipe does
// differently (its normalisation, most often) is set in a copy.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/image_records.hpp"
#include "io/images/crop_rule.hpp"
#include "io/images/resample.hpp"

namespace millrace::io {

/// How bytes become floats, red, green, blue; (byte - mean) x scale in every case.
enum class ImageNormalisation : std::uint8_t {
  MeanOnly,    ///< IPU trainer's default, both Habana trainers: minus 123.68, 116.78, 103.94
  Torch,       ///< --normalise-input, SURFsara: 255 x (.485 .456 .406), 255 x (.229 .224 .225)
  Nvidia2019,  ///< TensorFlow input of 2019: as MeanOnly, over 255
  Dali2019,    ///< DALI input of 2019: 121 115 100, 70 68 71
  Nvidia,      ///< today: 123.68 116.28 103.53, 58.395 57.12 57.385
};

/// `side` is the image's: all its pixels are real.
[[nodiscard]] PixelScaling scaling_of(ImageNormalisation normalisation, std::int32_t side);

struct ImagePreset {
  std::string_view name;
  CropRule crop;
  Resampling training;
  EvaluationRule evaluation;
  Resampling validation;
  ImageNormalisation normalisation = ImageNormalisation::MeanOnly;
};

/// All of them, in the order of the table above.
[[nodiscard]] std::span<const ImagePreset> image_presets();

/// The preset of this name. Error(Config) lists those there are.
[[nodiscard]] const ImagePreset& image_preset(std::string_view name);

}  // namespace millrace::io
