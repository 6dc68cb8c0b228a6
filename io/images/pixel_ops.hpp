// SPDX-License-Identifier: Apache-2.0
//
// Operations on the pixels of an image, with the results of Pillow to the bit. Factors have
// Pillow's meaning: 1 leaves an image as it is, 0 gives black, gray, the mean or a smoothed image.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace millrace::io {

/// Rows of red, green and blue bytes, without gaps.
struct RgbImage {
  std::span<std::uint8_t> bytes;
  std::int32_t height = 0;
  std::int32_t width = 0;
};

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
