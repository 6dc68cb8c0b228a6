// SPDX-License-Identifier: Apache-2.0
#include "io/images/presets.hpp"

#include <array>
#include <cstddef>
#include <string>

#include "core/error.hpp"

namespace millrace::io {
namespace {

constexpr std::array kPresets = {
    ImagePreset{.name = "tf",
                .crop = {},
                .training = {Filter::BilinearLegacy, MirrorStage::Before},
                .evaluation = {},
                .validation = {Filter::BilinearLegacy, MirrorStage::Before},
                .normalisation = ImageNormalisation::MeanOnly},
    ImagePreset{.name = "nvidia",
                .crop = {.draw = CropDraw::Area, .fallback = CropFallback::CentreBox},
                .training = {Filter::Bilinear, MirrorStage::After},
                .evaluation = {},
                .validation = {Filter::Bilinear, MirrorStage::After},
                .normalisation = ImageNormalisation::Nvidia},
    ImagePreset{.name = "dali2019",
                .crop = {.draw = CropDraw::Area,
                         .min_area = 0.1,
                         .min_aspect = 0.8,
                         .max_aspect = 1.25,
                         .fallback = CropFallback::CentreBox},
                .training = {Filter::Bilinear, MirrorStage::After},
                .evaluation = {},
                .validation = {Filter::Bilinear, MirrorStage::After},
                .normalisation = ImageNormalisation::Dali2019},
    ImagePreset{.name = "tpu",
                .crop = {.min_area = 0.08,
                         .min_aspect = 3.0 / 4.0,
                         .max_aspect = 4.0 / 3.0,
                         .attempts = 1,
                         .fallback = CropFallback::CentreOfScaled,
                         .centre = CentreOffset::Up},
                .training = {Filter::BicubicLegacy, MirrorStage::After},
                .evaluation = {.centre = CentreOffset::Up},
                .validation = {Filter::BicubicLegacy, MirrorStage::After},
                .normalisation = ImageNormalisation::Torch},
    ImagePreset{.name = "torch",
                .crop = {.draw = CropDraw::Area,
                         .min_area = 0.08,
                         .min_aspect = 3.0 / 4.0,
                         .max_aspect = 4.0 / 3.0,
                         .attempts = 10,
                         .fallback = CropFallback::CentreBox},
                .training = {Filter::BilinearAntialiased, MirrorStage::After},
                .evaluation = {.centre = CentreOffset::Even},
                .validation = {Filter::BilinearAntialiased, MirrorStage::After},
                .normalisation = ImageNormalisation::Torch},
};

}  // namespace

ColourStatistics statistics_of(ImageNormalisation normalisation) {
  switch (normalisation) {
    case ImageNormalisation::MeanOnly:
      break;
    case ImageNormalisation::Torch:
      return {.mean = {255 * 0.485, 255 * 0.456, 255 * 0.406},
              .deviation = {255 * 0.229, 255 * 0.224, 255 * 0.225}};
    case ImageNormalisation::Nvidia2019:
      return {.mean = {123.68, 116.78, 103.94}, .deviation = {255, 255, 255}};
    case ImageNormalisation::Dali2019:
      return {.mean = {121, 115, 100}, .deviation = {70, 68, 71}};
    case ImageNormalisation::Nvidia:
      return {.mean = {123.68, 116.28, 103.53}, .deviation = {58.395, 57.12, 57.385}};
  }
  return {.mean = {123.68, 116.78, 103.94}, .deviation = {1, 1, 1}};
}

PixelScaling scaling_of(const ColourStatistics& statistics, std::int32_t side) {
  PixelScaling scaling;
  for (std::size_t c = 0; c < statistics.mean.size(); ++c) {
    scaling.mean[c] = static_cast<float>(statistics.mean[c]);
    scaling.scale[c] = static_cast<float>(1.0 / statistics.deviation[c]);
  }
  scaling.real = {.bottom = side, .right = side};
  return scaling;
}

PixelScaling scaling_of(const Preparation& preparation, std::int32_t side) {
  return scaling_of(ColourStatistics{preparation.mean, preparation.deviation}, side);
}

Preparation preparation_of(const ImagePreset& preset, std::int32_t side) {
  const ColourStatistics statistics = preset.statistics();
  return {.preset = std::string(preset.name),
          .shorter_side = scaled_side(preset.evaluation, side),
          .mean = statistics.mean,
          .deviation = statistics.deviation};
}

std::span<const ImagePreset> image_presets() { return kPresets; }

const ImagePreset& image_preset(std::string_view name) {
  std::string names;
  for (const ImagePreset& preset : kPresets) {
    if (preset.name == name) return preset;
    names += names.empty() ? "" : ", ";
    names += preset.name;
  }
  fail(ErrorKind::Config, "image preset \"{}\" is unknown: choose from {}", name, names);
}

}  // namespace millrace::io
