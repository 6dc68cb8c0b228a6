// SPDX-License-Identifier: Apache-2.0
#include "io/images/presets.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/random.hpp"

namespace millrace::io {
namespace {

double area_of(const ImageSize& box) { return double{1} * box.width * box.height; }

bool fits(const ImageSize& box, const ImageSize& image) {
  return box.width > 0 && box.height > 0 && box.width <= image.width && box.height <= image.height;
}

/// To the nearest whole number, ties to even.
std::int32_t rounded(double x) { return static_cast<std::int32_t>(std::lrint(x)); }

double uniform(std::uint32_t word, double from, double to) {
  return from + static_cast<double>(uniform01(word)) * (to - from);
}

/// Uniform in 0 .. n-1, or 0 if n is at most 1.
std::int32_t below(std::uint32_t word, std::int32_t n) {
  return n > 0 ? static_cast<std::int32_t>(uniform_below(word, static_cast<std::uint32_t>(n))) : 0;
}

/// The box of this height, with the width of this aspect ratio.
ImageSize of_height(std::int32_t height, double aspect) {
  return {.height = height, .width = rounded(height * aspect)};
}

/// The largest height, at most `height`, that fits in the image at this aspect ratio.
std::int32_t limit_height(std::int32_t height, double aspect, const ImageSize& image) {
  if (rounded(height * aspect) > image.width) {
    height = static_cast<std::int32_t>((image.width + 0.5) / aspect);
    if (rounded(height * aspect) > image.width) --height;
  }
  return std::min(height, image.height);
}

/// TensorFlow's sample_distorted_bounding_box: the height is uniform between those of the smallest
/// and the largest area. Rounding may miss a bound by one row, which is corrected.
std::optional<ImageSize> draw_by_height(const CropRule& rule, const ImageSize& image,
                                        const RandomBlock& words) {
  const double aspect = uniform(words[0], rule.min_aspect, rule.max_aspect);
  const double min_area = rule.min_area * area_of(image);
  const double max_area = rule.max_area * area_of(image);
  const std::int32_t max_height =
      limit_height(rounded(std::sqrt(max_area / aspect)), aspect, image);
  const std::int32_t min_height = std::min(rounded(std::sqrt(min_area / aspect)), max_height);
  ImageSize box = of_height(min_height + below(words[1], max_height - min_height + 1), aspect);
  if (area_of(box) < min_area) box = of_height(box.height + 1, aspect);
  if (area_of(box) > max_area) box = of_height(box.height - 1, aspect);
  if (area_of(box) < min_area || area_of(box) > max_area || !fits(box, image)) return std::nullopt;
  return box;
}

/// torchvision's RandomResizedCrop: area and logarithm of the aspect ratio are uniform.
std::optional<ImageSize> draw_by_area(const CropRule& rule, const ImageSize& image,
                                      const RandomBlock& words) {
  const double area = uniform(words[1], rule.min_area, rule.max_area) * area_of(image);
  const double aspect =
      std::exp(uniform(words[0], std::log(rule.min_aspect), std::log(rule.max_aspect)));
  const ImageSize box{.height = rounded(std::sqrt(area / aspect)),
                      .width = rounded(std::sqrt(area * aspect))};
  if (!fits(box, image)) return std::nullopt;
  return box;
}

/// Position of a box. TensorFlow excludes the last position, torchvision includes it.
PixelBox place(const ImageSize& box, const ImageSize& image, CropDraw draw,
               const RandomBlock& words) {
  const std::int32_t last = draw == CropDraw::Area ? 1 : 0;
  const std::int32_t top = below(words[2], image.height - box.height + last);
  const std::int32_t left = below(words[3], image.width - box.width + last);
  return {.top = top, .left = left, .bottom = top + box.height, .right = left + box.width};
}

/// In whole pixels, truncated as in TensorFlow.
PixelBox pixels_of(const ObjectBox& object, const ImageSize& image) {
  const auto cut = [](float share, std::int32_t side) {
    const auto pixel = static_cast<std::int32_t>(share * static_cast<float>(side));
    return std::clamp(pixel, 0, side);
  };
  return {.top = cut(object.top, image.height),
          .left = cut(object.left, image.width),
          .bottom = cut(object.bottom, image.height),
          .right = cut(object.right, image.width)};
}

std::int64_t common_pixels(const PixelBox& a, const PixelBox& b) {
  const PixelBox common{.top = std::max(a.top, b.top),
                        .left = std::max(a.left, b.left),
                        .bottom = std::min(a.bottom, b.bottom),
                        .right = std::min(a.right, b.right)};
  return common.top < common.bottom && common.left < common.right ? common.pixels() : 0;
}

bool covers(const PixelBox& box, const PixelBox& object, double share) {
  if (object.bottom <= object.top || object.right <= object.left) return false;
  const auto common = static_cast<double>(common_pixels(box, object));
  return common >= share * static_cast<double>(object.pixels());
}

bool covers_an_object(const PixelBox& box, const ImageSize& image,
                      std::span<const ObjectBox> objects, double share) {
  if (objects.empty()) return covers(box, {.bottom = image.height, .right = image.width}, share);
  return std::any_of(objects.begin(), objects.end(), [&](const ObjectBox& object) {
    return covers(box, pixels_of(object, image), share);
  });
}

std::int32_t centred(std::int32_t difference, CentreOffset offset) {
  switch (offset) {
    case CentreOffset::Down:
      break;
    case CentreOffset::Up:
      return (difference + 1) / 2;
    case CentreOffset::Even:
      return rounded(difference / 2.0);
  }
  return difference / 2;
}

/// The largest centered box whose aspect ratio is in range.
PixelBox centre_box(const CropRule& rule, const ImageSize& image) {
  const double aspect = static_cast<double>(image.width) / image.height;
  ImageSize box = image;
  if (aspect < rule.min_aspect) box.height = rounded(image.width / rule.min_aspect);
  if (aspect > rule.max_aspect) box.width = rounded(image.height * rule.max_aspect);
  const std::int32_t top = (image.height - box.height) / 2;
  const std::int32_t left = (image.width - box.width) / 2;
  return {.top = top, .left = left, .bottom = top + box.height, .right = left + box.width};
}

/// The whole image scaled to this shorter side, and the center of side x side pixels.
ImageWindow centre_of_scaled(const ImageSize& image, std::int32_t shorter, CentreOffset offset,
                             std::int32_t side) {
  const std::int32_t least = std::min(image.width, image.height);
  const auto scaled = [shorter, least](std::int32_t length) {
    return static_cast<std::int32_t>(std::int64_t{length} * shorter / least);
  };
  ImageWindow window{.box = {.bottom = image.height, .right = image.width},
                     .scaled_width = scaled(image.width),
                     .scaled_height = scaled(image.height)};
  window.left = centred(window.scaled_width - side, offset);
  window.top = centred(window.scaled_height - side, offset);
  return window;
}

ImageWindow fall_back(const CropRule& rule, const ImageSize& image, std::int32_t side) {
  if (rule.fallback == CropFallback::CentreOfScaled)
    return centre_of_scaled(image, side, rule.centre, side);
  ImageWindow window{.box = {.bottom = image.height, .right = image.width},
                     .scaled_width = side,
                     .scaled_height = side};
  if (rule.fallback == CropFallback::CentreBox) window.box = centre_box(rule, image);
  return window;
}

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

ImageWindow draw_window(const CropRule& rule, const DrawKey& key, const ImageHeader& image,
                        std::span<const ObjectBox> objects, std::int32_t side) {
  MILLRACE_ASSERT(image.width > 0 && image.height > 0 && side > 0);
  const ImageSize extent{.height = image.height, .width = image.width};
  const RandomStream stream(key.seed, RandomPurpose::Augment, key.epoch);
  // Block 0 mirrors, block n is the n-th attempt.
  const Mirror mirror =
      uniform_below(stream.block(0, key.index)[0], 2) == 1 ? Mirror::Yes : Mirror::No;
  for (std::int32_t attempt = 1; attempt <= rule.attempts; ++attempt) {
    const RandomBlock words = stream.block(static_cast<std::uint64_t>(attempt), key.index);
    const bool by_height = rule.draw == CropDraw::Height;
    const std::optional<ImageSize> drawn =
        by_height ? draw_by_height(rule, extent, words) : draw_by_area(rule, extent, words);
    if (!drawn) continue;
    const PixelBox box = place(*drawn, extent, rule.draw, words);
    if (by_height && !covers_an_object(box, extent, objects, rule.min_object_covered)) continue;
    return {.box = box, .scaled_width = side, .scaled_height = side, .mirror = mirror};
  }
  ImageWindow window = fall_back(rule, extent, side);
  window.mirror = mirror;
  return window;
}

std::int32_t scaled_side(const EvaluationRule& rule, std::int32_t side) {
  MILLRACE_ASSERT(side > 0 && rule.window > 0 && rule.scaled >= rule.window);
  return static_cast<std::int32_t>(std::int64_t{side} * rule.scaled / rule.window);
}

ImageWindow evaluation_window(const EvaluationRule& rule, const ImageHeader& image,
                              std::int32_t side) {
  MILLRACE_ASSERT(image.width > 0 && image.height > 0);
  return centre_of_scaled({.height = image.height, .width = image.width}, scaled_side(rule, side),
                          rule.centre, side);
}

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

PixelScaling scaling_of(const run::Preparation& preparation, std::int32_t side) {
  return scaling_of(ColourStatistics{preparation.mean, preparation.deviation}, side);
}

run::Preparation preparation_of(const ImagePreset& preset, std::int32_t side) {
  const ColourStatistics statistics = preset.statistics();
  return {.preset = std::string(preset.name),
          .shorter_side = scaled_side(preset.evaluation, side),
          .mean = statistics.mean,
          .deviation = statistics.deviation};
}

ImagePreset preset_of(const run::Preparation& preparation, std::int32_t side) {
  const bool any = preparation.preset.empty();
  ImagePreset preset = image_preset(any ? "torch" : preparation.preset);
  if (any) preset.evaluation.scaled = preset.evaluation.window = side;
  preset.own_statistics = {.mean = preparation.mean, .deviation = preparation.deviation};
  return preset;
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
