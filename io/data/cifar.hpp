// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "io/data/cifar_files.hpp"
#include "io/data/dataset.hpp"
#include "io/images/augmentation.hpp"

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
[[nodiscard]] Preparation preparation_of(const ChannelStatistics& statistics);

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

}  // namespace millrace::io
