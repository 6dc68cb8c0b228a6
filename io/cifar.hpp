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

/// A file beside a generated set, with a line "<file> <records>" for each of its files. It detects
/// files that were truncated between two records.
inline constexpr std::string_view kRecordCountsName = "millrace-records.txt";

enum class CifarKind : std::uint8_t { Cifar10, Cifar100 };
enum class CifarSplit : std::uint8_t { Train, Test };

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

struct CifarOptions {
  CifarKind kind = CifarKind::Cifar10;
  CifarSplit split = CifarSplit::Train;
  CifarNormalisation normalisation = CifarNormalisation::Standardise;
  /// With Dataset: used instead of statistics measured from the training files.
  std::optional<ChannelStatistics> statistics = std::nullopt;
};

/// Checks the contents of one file: a whole number of records, at least one, and every label in
/// range. Error(Data) names `file`, the size or the record, and the value.
void check_cifar_records(std::span<const std::uint8_t> bytes, CifarKind kind,
                         std::string_view file);

/// The folder that holds the set: `directory`, or the first one named cifar-10-batches-bin or
/// cifar-100-binary at most four levels below it. Error(Data) names the expected files and the
/// places searched.
[[nodiscard]] std::filesystem::path find_cifar(const std::filesystem::path& directory,
                                               CifarKind kind);

/// The kind of the set that find_cifar finds.
[[nodiscard]] std::optional<CifarKind> cifar_kind_in(const std::filesystem::path& directory);

/// Content of a split, and one line per problem.
struct CifarReport {
  std::int64_t files = 0;
  std::int64_t records = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> problems;
};
/// Reads all of a split in the folder that find_cifar returns. Missing and unreadable files are
/// reported as problems.
[[nodiscard]] CifarReport check_cifar(const std::filesystem::path& folder, CifarKind kind,
                                      CifarSplit split);

/// Statistics of the training files below `directory` (found as by open_cifar).
[[nodiscard]] ChannelStatistics measure_cifar(const std::filesystem::path& directory,
                                              CifarKind kind);

/// Reads the files of one split into memory and checks them. A CIFAR-10 training set has one to
/// five files data_batch_1.bin, data_batch_2.bin, .. with any number of records. Errors: Data if
/// the set is missing or damaged, Io if a file cannot be read.
[[nodiscard]] std::unique_ptr<Dataset> open_cifar(const std::filesystem::path& directory,
                                                  const CifarOptions& options);

}  // namespace millrace::io
