// SPDX-License-Identifier: Apache-2.0
#include "io/data/small_images.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/random.hpp"

namespace millrace::io {
namespace {

/// Range of rows (or columns) of a window at `offset` that are in the image.
std::pair<std::int32_t, std::int32_t> shown(std::int32_t offset) {
  constexpr auto kExtent = static_cast<std::int32_t>(kSmallSide);
  const std::int32_t begin = static_cast<std::int32_t>(kCropPadding) - offset;
  return {std::max(begin, 0), std::min(begin + kExtent, +kExtent)};
}

}  // namespace

Crop draw_crop(const ReadKey& key, std::int64_t index) {
  if (!key.augment) return {};
  constexpr auto kOffsets = static_cast<std::uint32_t>(2 * kCropPadding + 1);
  const RandomBlock random = RandomStream(key.seed, RandomPurpose::Augment, key.epoch)
                                 .block(0, static_cast<std::uint64_t>(index));
  return {.mirror = uniform_below(random[0], 2) == 1 ? Mirror::Yes : Mirror::No,
          .top = static_cast<std::int32_t>(uniform_below(random[1], kOffsets)),
          .left = static_cast<std::int32_t>(uniform_below(random[2], kOffsets))};
}

PixelBox real_window(const Crop& crop) {
  const auto [top, bottom] = shown(crop.top);
  const auto [left, right] = shown(crop.left);
  return {.top = top, .left = left, .bottom = bottom, .right = right};
}

PixelScaling standardisation_of(std::span<const std::uint8_t, kSmallPixels> planes) {
  // Integer sums are exact in any order, so the result does not depend on vectorization. The
  // maximum, 3072 x 255 x 255, fits in 32 bits.
  std::uint32_t sum = 0;
  std::uint32_t sum_of_squares = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kSmallPixels); ++i) {
    const std::uint32_t pixel = planes[i];
    sum += pixel;
    sum_of_squares += pixel * pixel;
  }
  constexpr auto kCount = static_cast<std::int64_t>(kSmallPixels);
  const std::int64_t scaled_variance = kCount * std::int64_t{sum_of_squares} -
                                       std::int64_t{sum} * std::int64_t{sum};  // n^2 x variance
  const auto count = static_cast<double>(kCount);
  const double deviation = std::sqrt(static_cast<double>(scaled_variance)) / count;
  const auto mean = static_cast<float>(static_cast<double>(sum) / count);
  const auto scale = static_cast<float>(1.0 / std::max(deviation, 1.0 / std::sqrt(count)));
  return {.mean = {mean, mean, mean}, .scale = {scale, scale, scale}, .real = {}, .erased = {}};
}

void augment_planes(const Augmentation& augmentation, const DrawKey& key,
                    std::span<const std::uint8_t, kSmallPixels> planes,
                    std::span<std::uint8_t, kSmallPixels> augmented) {
  constexpr auto kPlane = static_cast<std::size_t>(kSmallPlane);
  constexpr auto kChannels = static_cast<std::size_t>(kSmallChannels);
  std::array<std::uint8_t, static_cast<std::size_t>(kSmallPixels)> rgb;
  for (std::size_t i = 0; i < kPlane; ++i)
    for (std::size_t c = 0; c < kChannels; ++c) rgb[i * kChannels + c] = planes[c * kPlane + i];
  augment_pixels(augmentation, key, {.bytes = rgb, .height = kSmallSide, .width = kSmallSide},
                 augmented);
  for (std::size_t i = 0; i < kPlane; ++i)
    for (std::size_t c = 0; c < kChannels; ++c) augmented[c * kPlane + i] = rgb[i * kChannels + c];
}

void decode_bytes(std::span<const std::uint8_t, kSmallPixels> planes, const Crop& crop,
                  std::span<std::uint8_t, kSmallPixels> image) {
  const PixelBox real = real_window(crop);
  std::fill(image.begin(), image.end(), std::uint8_t{0});
  const bool mirrored = crop.mirror == Mirror::Yes;
  for (std::int32_t y = real.top; y < real.bottom; ++y) {
    const std::ptrdiff_t row = (y + crop.top - kCropPadding) * kSmallSide;
    for (std::int32_t x = real.left; x < real.right; ++x) {
      const std::ptrdiff_t column = x + crop.left - kCropPadding;
      const std::uint8_t* const from =
          planes.data() + row + (mirrored ? kSmallSide - 1 - column : column);
      std::uint8_t* const to = image.data() + (y * kSmallSide + x) * kSmallChannels;
      for (std::ptrdiff_t c = 0; c < kSmallChannels; ++c) to[c] = from[c * kSmallPlane];
    }
  }
}

}  // namespace millrace::io
