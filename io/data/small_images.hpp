// SPDX-License-Identifier: Apache-2.0
//
// Converts the stored planes of a small image to the bytes that a network reads: mirror, shift and
// interleave. The recipe pads after normalizing, so padding is not part of the real pixels.
#pragma once

#include <cstdint>
#include <span>

#include "io/data/dataset.hpp"
#include "io/images/augmentation.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

inline constexpr std::int64_t kSmallSide = 32;     ///< CIFAR images are 32 x 32
inline constexpr std::int64_t kSmallChannels = 3;  ///< red, green, blue
inline constexpr std::int64_t kCropPadding = 4;    ///< zeros around an image before it is cropped
inline constexpr std::int64_t kSmallPlane = kSmallSide * kSmallSide;
inline constexpr std::int64_t kSmallPixels = kSmallPlane * kSmallChannels;

/// A 32 x 32 window on the mirrored, padded image. top = left = kCropPadding is the image itself.
struct Crop {
  Mirror mirror = Mirror::No;
  std::int32_t top = static_cast<std::int32_t>(kCropPadding);   ///< 0 .. 2 x kCropPadding
  std::int32_t left = static_cast<std::int32_t>(kCropPadding);  ///< 0 .. 2 x kCropPadding
  friend bool operator==(const Crop&, const Crop&) = default;
};

/// The window of sample `index`: random when the key augments (mirrored with probability 1/2, every
/// offset equally likely), otherwise the image itself.
[[nodiscard]] Crop draw_crop(const ReadKey& key, std::int64_t index);

/// The part of the window that shows pixels of the image, not padding.
[[nodiscard]] PixelBox real_window(const Crop& crop);

/// Scaling of TensorFlow's per_image_standardization: (x - mean) / max(deviation, 1/sqrt(pixels))
/// with mean and population deviation over all pixels of the image; `real` stays empty.
[[nodiscard]] PixelScaling standardisation_of(std::span<const std::uint8_t, kSmallPixels> planes);

/// Augments the pixels of a channel-planar image: of the stored image, before it is mirrored and
/// shifted, so that padding is never part of it.
void augment_planes(const Augmentation& augmentation, const DrawKey& key,
                    std::span<const std::uint8_t, kSmallPixels> planes,
                    std::span<std::uint8_t, kSmallPixels> augmented);

/// Writes the window `crop` of the channel-planar image as height x width x channels bytes; padding
/// is 0.
void decode_bytes(std::span<const std::uint8_t, kSmallPixels> planes, const Crop& crop,
                  std::span<std::uint8_t, kSmallPixels> image);

}  // namespace millrace::io
