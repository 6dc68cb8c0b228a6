// SPDX-License-Identifier: Apache-2.0
//
// Augmentation of pixels in training, besides crop and mirror:
//
//   crop, resample, mirror -> RandAugment -> color jitter -> normalize -> random erasing
//
// Operations, magnitudes and distributions are torchvision's; the pixels are Pillow's to the bit.
// What an image gets is a pure function of (seed, epoch, index in the data set), so it does not
// depend on threads, layout or restarts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/image_records.hpp"
#include "io/images/header.hpp"
#include "run/image_options.hpp"

namespace millrace::io {

using run::Augmentation;
using run::kMostMagnitude;
using run::kMostOperations;

/// Rows of red, green and blue bytes, without gaps.
struct RgbImage {
  std::span<std::uint8_t> bytes;
  std::int32_t height = 0;
  std::int32_t width = 0;
};

/// The operations of RandAugment, in torchvision's order.
enum class AugmentOp : std::uint8_t {
  Identity,
  ShearX,
  ShearY,
  TranslateX,
  TranslateY,
  Rotate,
  Brightness,
  Color,
  Contrast,
  Sharpness,
  Posterize,
  Solarize,
  AutoContrast,
  Equalize,
};
inline constexpr std::uint32_t kAugmentOps = 14;

/// The strength of an operation at a magnitude, as torchvision's table has it for images of this
/// size: a shear, pixels, degrees, a factor less 1, bits or a threshold.
[[nodiscard]] double strength_of(AugmentOp op, std::int32_t magnitude, std::int32_t height,
                                 std::int32_t width);
/// Whether the strength is used with either sign.
[[nodiscard]] bool is_signed(AugmentOp op) noexcept;
/// Applies an operation with this strength. `scratch` has the size of the image.
void apply(AugmentOp op, double strength, const RgbImage& image, std::span<std::uint8_t> scratch);

/// Applies RandAugment and color jitter to the image of sample `key`.
void augment_pixels(const Augmentation& augmentation, const DrawKey& key, const RgbImage& image,
                    std::span<std::uint8_t> scratch);

/// The box of sample `key` that is erased: 2 to 33 % of the image, 0.3 to 3.3 times as high as
/// wide. Empty, if nothing is erased.
[[nodiscard]] PixelBox draw_erased(const Augmentation& augmentation, const DrawKey& key,
                                   std::int32_t height, std::int32_t width);

// The operations on pixels, with the results of Pillow to the bit (pixel_ops.cpp). Factors have
// Pillow's meaning: 1 leaves an image as it is, 0 gives black, gray, the mean or a smoothed image.

void adjust_brightness(const RgbImage& image, float factor);
void adjust_saturation(const RgbImage& image, float factor);
void adjust_contrast(const RgbImage& image, float factor);
/// `scratch` has the size of the image, here and below.
void adjust_sharpness(const RgbImage& image, float factor, std::span<std::uint8_t> scratch);
/// Turns colors by `turn` of the circle, -0.5 .. 0.5.
void shift_hue(const RgbImage& image, double turn);

/// Keeps the `bits` upper bits of each value.
void posterize(const RgbImage& image, int bits);
/// Inverts values that are not below `threshold`.
void solarize(const RgbImage& image, double threshold);
/// Stretches each channel to 0 .. 255.
void stretch_contrast(const RgbImage& image);
/// Equalizes the histogram of each channel.
void equalize(const RgbImage& image);

/// Pixel (x, y) of the result is the pixel nearest to (a x + b y + c, d x + e y + f), with centers
/// at .5, or black outside.
using AffineMap = std::array<double, 6>;
void transform(const RgbImage& image, const AffineMap& map, std::span<std::uint8_t> scratch);
/// The map that turns an image counterclockwise about its center.
[[nodiscard]] AffineMap rotation_of(double degrees, std::int32_t height, std::int32_t width);

}  // namespace millrace::io
