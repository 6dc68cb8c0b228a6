// SPDX-License-Identifier: Apache-2.0
//
// The binary versions of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html), and
// any set in the same layout: files of equal records, each the label bytes and then 1024 red, 1024
// green and 1024 blue pixels in rows.
//
//   CIFAR-10   one label byte          data_batch_1.bin .. data_batch_5.bin, test_batch.bin
//   CIFAR-100  coarse and fine label   train.bin, test.bin            (the fine label is the class)
//
// What a network reads is mirrored, shifted and interleaved. The recipe pads after normalizing, so
// padding is not part of the real pixels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/images/augmentation.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

// The files (cifar_files.cpp).

/// A file beside a generated set, with a line "<file> <records>" for each of its files. It detects
/// files that were truncated between two records.
inline constexpr std::string_view kRecordCountsName = "millrace-records.txt";

enum class CifarKind : std::uint8_t { Cifar10, Cifar100 };

/// What differs between the two sets.
struct CifarLayout {
  std::string_view name;
  std::string_view folder;            ///< the folder in the archive
  std::string_view expected;          ///< files, for messages
  std::span<const int> label_limits;  ///< classes of each label byte; the last one is the class
  std::string_view train;             ///< its training file, or the first of several
  std::string_view test;
  std::string_view names;       ///< the file of the names of the classes
  std::string_view first_name;  ///< in the published set, and the records of `train` there
  std::int64_t published_train = 0;
  [[nodiscard]] std::size_t record_bytes() const noexcept {
    return label_limits.size() + 3 * 32 * 32;
  }
  [[nodiscard]] int classes() const noexcept { return label_limits.back(); }
};
[[nodiscard]] const CifarLayout& layout_of(CifarKind kind) noexcept;

/// The folder that holds the set: `directory`, or the first one named cifar-10-batches-bin or
/// cifar-100-binary at most four levels below it. Error(Data) names the expected files and the
/// places searched.
[[nodiscard]] std::filesystem::path find_cifar(const std::filesystem::path& directory,
                                               CifarKind kind);

/// Whether find_cifar finds a set.
[[nodiscard]] bool cifar_is_in(const std::filesystem::path& directory, CifarKind kind);

/// Content of a split, and one line per problem: everything that is bad, not only the first.
struct CifarReport {
  std::int64_t files = 0;
  std::int64_t records = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> problems;
};
/// Reads all of a split in the folder that find_cifar returns. Missing, unreadable and truncated
/// files and labels out of range are problems.
[[nodiscard]] CifarReport check_cifar(const std::filesystem::path& folder, CifarKind kind,
                                      Split split);

/// Names of the classes, from the set's file of names beside its images; none if there is no such
/// file, or if it has another number of lines. Errors: Io.
[[nodiscard]] std::vector<std::string> read_cifar_class_names(const std::filesystem::path& folder,
                                                              CifarKind kind);

/// All records of one split, checked. Errors: Data if files are missing, damaged or truncated; Io.
[[nodiscard]] std::vector<std::uint8_t> read_cifar_records(const std::filesystem::path& folder,
                                                           CifarKind kind, Split split);

// The images.

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
inline constexpr std::int32_t kCropPadding = 4;    ///< zeros around an image before it is cropped
inline constexpr std::int64_t kSmallPlane = kSmallSide * kSmallSide;
inline constexpr std::int64_t kSmallPixels = kSmallPlane * kSmallChannels;

/// A window on the mirrored, padded image. top = left = padding is the image itself.
struct Crop {
  Mirror mirror = Mirror::No;
  std::int32_t top = kCropPadding;   ///< 0 .. 2 x padding
  std::int32_t left = kCropPadding;  ///< 0 .. 2 x padding
  friend bool operator==(const Crop&, const Crop&) = default;
};

/// The window of sample `index`: random when the key augments (mirrored with probability 1/2, every
/// offset equally likely), otherwise the image itself.
[[nodiscard]] Crop draw_crop(const ReadKey& key, std::int64_t index,
                             std::int32_t padding = kCropPadding);

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
