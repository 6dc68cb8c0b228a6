// SPDX-License-Identifier: Apache-2.0
//
// CIFAR-10, CIFAR-100 and sets in their format. Their small images are stored as planes; what a
// network reads is mirrored, shifted and interleaved. The recipe pads after normalizing, so padding
// is not part of the real pixels.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/data/cifar_files.hpp"
#include "io/data/dataset.hpp"
#include "io/images/augmentation.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

/// Normalization: with the mean and deviation of each image (the recipe), or with the mean and
/// deviation of each channel over the training images.
enum class CifarNormalisation : std::uint8_t { Standardise, Dataset };

/// Mean and population deviation of red, green and blue, of pixels scaled to 0 .. 1.
struct ChannelStatistics {
  std::array<double, 3> mean{};
  std::array<double, 3> deviation{};
  friend bool operator==(const ChannelStatistics&, const ChannelStatistics&) = default;
};

/// The values that torchvision's ImageNet networks and many CIFAR networks expect.
inline constexpr ChannelStatistics kImageNetStatistics{.mean = {0.485, 0.456, 0.406},
                                                       .deviation = {0.229, 0.224, 0.225}};

/// How images are prepared by statistics. Errors: Config if a deviation is not positive, or a
/// number not finite.
[[nodiscard]] run::Preparation preparation_of(const ChannelStatistics& statistics);

struct CifarOptions {
  CifarKind kind = CifarKind::Cifar10;
  Split split = Split::Train;
  CifarNormalisation normalisation = CifarNormalisation::Standardise;
  /// With Dataset: used instead of statistics measured from the training files.
  std::optional<ChannelStatistics> statistics = std::nullopt;
  Augmentation augmentation = {};  ///< of training images
};

/// Statistics of the training files below `directory` (found as by open_cifar).
[[nodiscard]] ChannelStatistics measure_cifar(const std::filesystem::path& directory,
                                              CifarKind kind);

/// Reads the files of one split into memory and checks them. A CIFAR-10 training set has one to
/// five files data_batch_1.bin, data_batch_2.bin, .. with any number of records. Errors: Data if
/// the set is missing or damaged, Io if a file cannot be read.
[[nodiscard]] std::unique_ptr<Dataset> open_cifar(const std::filesystem::path& directory,
                                                  const CifarOptions& options);

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
