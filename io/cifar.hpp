// SPDX-License-Identifier: Apache-2.0
//
// The binary versions of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html), and
// any set in the same layout: files of equal records, each the label bytes and then 1024 red, 1024
// green and 1024 blue pixels in rows.
//
//   CIFAR-10   one label byte          data_batch_1.bin .. data_batch_5.bin, test_batch.bin
//   CIFAR-100  coarse and fine label   train.bin, test.bin            (the fine label is the class)
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/dataset.hpp"

namespace millrace::io {

/// A file beside a set that was drawn, with a line "<file> <records>" for each of its files: a file
/// cut between two records is as good as any other.
inline constexpr std::string_view kRecordCountsName = "millrace-records.txt";

enum class CifarKind : std::uint8_t { Cifar10, Cifar100 };
enum class CifarSplit : std::uint8_t { Train, Test };

/// How pixels become floats: every image by its own mean and deviation (the recipe), or every image
/// by the mean and deviation of each channel over the training images.
enum class CifarNormalisation : std::uint8_t { Standardise, Dataset };

/// Mean and population deviation of red, green and blue, of pixels scaled to 0 .. 1.
struct ChannelStatistics {
  std::array<double, 3> mean{};
  std::array<double, 3> deviation{};
  friend bool operator==(const ChannelStatistics&, const ChannelStatistics&) = default;
};

/// The values that networks trained on ImageNet by torchvision's recipe, and many CIFAR networks
/// after them, expect.
inline constexpr ChannelStatistics kImageNetStatistics{.mean = {0.485, 0.456, 0.406},
                                                       .deviation = {0.229, 0.224, 0.225}};

struct CifarOptions {
  CifarKind kind = CifarKind::Cifar10;
  CifarSplit split = CifarSplit::Train;
  CifarNormalisation normalisation = CifarNormalisation::Standardise;
  /// With Dataset: used instead of measuring the training files.
  std::optional<ChannelStatistics> statistics = std::nullopt;
};

/// Checks the contents of one file: a whole number of records, at least one, and every label in
/// range. Error(Data) names `file`, the size or the record, and the value. Takes bytes, so that it
/// can be fed anything.
void check_cifar_records(std::span<const std::uint8_t> bytes, CifarKind kind,
                         std::string_view file);

/// The folder that holds the set: `directory`, or the first one named cifar-10-batches-bin or
/// cifar-100-binary at most four levels below it. Error(Data) says what was looked for and where.
[[nodiscard]] std::filesystem::path find_cifar(const std::filesystem::path& directory,
                                               CifarKind kind);

/// The kind of which find_cifar finds a set.
[[nodiscard]] std::optional<CifarKind> cifar_kind_in(const std::filesystem::path& directory);

/// What a split holds, and a line for everything that is wrong with it.
struct CifarReport {
  std::int64_t files = 0;
  std::int64_t records = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> problems;
};
/// Reads all of a split in the folder that find_cifar gives. Files that are missing or cannot be
/// read are problems, too.
[[nodiscard]] CifarReport check_cifar(const std::filesystem::path& folder, CifarKind kind,
                                      CifarSplit split);

/// Statistics of the training files below `directory` (found as by open_cifar).
[[nodiscard]] ChannelStatistics measure_cifar(const std::filesystem::path& directory,
                                              CifarKind kind);

/// Reads the files of one split into memory and checks them. A CIFAR-10 training set has as many
/// files data_batch_1.bin, 2, .. as there are, at most five, and any number of records. Errors:
/// Data for a set that is missing or damaged, Io for a file that cannot be read.
[[nodiscard]] std::unique_ptr<Dataset> open_cifar(const std::filesystem::path& directory,
                                                  const CifarOptions& options);

}  // namespace millrace::io
