// SPDX-License-Identifier: Apache-2.0
//
// The published preprocessing variants for ImageNet, as rows of a table:
//
//   preset    crop: by, area, aspect, attempts   filter                 center   normalization
//   tf        height, 5-100 %, .75-1.33, 100     bilinear, legacy       down     MeanOnly
//   nvidia    area, 5-100 %, .75-1.33, 100       bilinear, half-pixel   down     Nvidia
//   dali2019  area, 10-100 %, .8-1.25, 100       bilinear, half-pixel   down     Dali2019
//   tpu       height, 8-100 %, 3/4-4/3, 1        bicubic, legacy        up       Torch
//   torch     area, 8-100 %, 3/4-4/3, 10         bilinear, antialiased  even     Torch
//
// For validation, all of them scale the shorter side to 256/224 of the window's side. Recipes that
// differ (usually in normalization) change a copy.
//
// There are two distributions of boxes. TensorFlow draws an aspect ratio and then the *height*,
// uniformly between those of the smallest and the largest area. torchvision draws the *area*
// uniformly and the logarithm of the aspect ratio uniformly; its boxes are larger on average. Both
// try again if a box does not fit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/image_format.hpp"
#include "core/image_records.hpp"
#include "io/images/header.hpp"
#include "io/images/resample.hpp"
#include "run/image_options.hpp"

namespace millrace::io {

using run::ImageNormalisation;

/// What is uniformly distributed.
enum class CropDraw : std::uint8_t { Height, Area };

/// The box if every attempt failed: the whole image; the largest centered box whose aspect ratio is
/// in range; or the center of the image scaled to the shorter side.
enum class CropFallback : std::uint8_t { Whole, CentreBox, CentreOfScaled };

/// Offset of the centered window, from the difference d of the sides: floor(d / 2), d / 2 rounded
/// up, or d / 2 rounded half to even (as Python's round does).
enum class CentreOffset : std::uint8_t { Down, Up, Even };

struct CropRule {
  CropDraw draw = CropDraw::Height;
  double min_area = 0.05;    ///< share of the image
  double max_area = 1.0;     ///< share of the image
  double min_aspect = 0.75;  ///< width / height
  double max_aspect = 1.33;  ///< width / height
  std::int32_t attempts = 100;
  /// Share of at least one object (or of the image, if it has no objects) that a box must cover;
  /// objects smaller than a pixel are ignored. Only with CropDraw::Height.
  double min_object_covered = 0.1;
  CropFallback fallback = CropFallback::Whole;
  CentreOffset centre = CentreOffset::Down;  ///< of CropFallback::CentreOfScaled
  friend bool operator==(const CropRule&, const CropRule&) = default;
};

/// Validation: the shorter side is scaled to side x scaled / window (truncated), the other side in
/// proportion (truncated), and the center is cropped.
struct EvaluationRule {
  std::int32_t scaled = 256;
  std::int32_t window = 224;
  CentreOffset centre = CentreOffset::Down;
  friend bool operator==(const EvaluationRule&, const EvaluationRule&) = default;
};

/// The training window of sample `key` in an image of this size, scaled to side x side pixels and
/// mirrored with probability 1/2. Equal keys give equal windows; different keys give independent
/// ones. `objects` may be empty.
[[nodiscard]] ImageWindow draw_window(const CropRule& rule, const DrawKey& key,
                                      const ImageHeader& image, std::span<const ObjectBox> objects,
                                      std::int32_t side);

/// The shorter side of a scaled image of a validation, of which side x side pixels are cropped.
[[nodiscard]] std::int32_t scaled_side(const EvaluationRule& rule, std::int32_t side);
/// The validation window of side x side pixels.
[[nodiscard]] ImageWindow evaluation_window(const EvaluationRule& rule, const ImageHeader& image,
                                            std::int32_t side);

/// Red, green and blue: (byte - mean) / deviation.
struct ColourStatistics {
  std::array<double, 3> mean{};
  std::array<double, 3> deviation{1.0, 1.0, 1.0};
  friend bool operator==(const ColourStatistics&, const ColourStatistics&) = default;
};

[[nodiscard]] ColourStatistics statistics_of(ImageNormalisation normalisation);
/// `side` is the side of the image, whose pixels are all real.
[[nodiscard]] PixelScaling scaling_of(const ColourStatistics& statistics, std::int32_t side);

struct ImagePreset {
  std::string_view name;
  CropRule crop;
  Resampling training;
  EvaluationRule evaluation;
  Resampling validation;
  ImageNormalisation normalisation = ImageNormalisation::MeanOnly;
  std::optional<ColourStatistics> own_statistics = {};  ///< in place of those of `normalisation`

  [[nodiscard]] ColourStatistics statistics() const {
    return own_statistics.value_or(statistics_of(normalisation));
  }
};

/// What a checkpoint records of a preset, for images of side x side pixels.
[[nodiscard]] run::Preparation preparation_of(const ImagePreset& preset, std::int32_t side);
/// The inverse. A preparation of images that have their size already scales others to it.
[[nodiscard]] ImagePreset preset_of(const run::Preparation& preparation, std::int32_t side);
/// Scaling by a mean and a deviation; the same bits as that of the set it was recorded from.
[[nodiscard]] PixelScaling scaling_of(const run::Preparation& preparation, std::int32_t side);

/// All presets, in the order of the table above.
[[nodiscard]] std::span<const ImagePreset> image_presets();

/// The preset of this name. Error(Config), with a list of all presets, if it is unknown.
[[nodiscard]] const ImagePreset& image_preset(std::string_view name);

}  // namespace millrace::io
