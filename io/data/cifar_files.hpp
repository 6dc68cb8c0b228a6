// SPDX-License-Identifier: Apache-2.0
//
// The binary versions of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html), and
// any set in the same layout: files of equal records, each the label bytes and then 1024 red, 1024
// green and 1024 blue pixels in rows.
//
//   CIFAR-10   one label byte          data_batch_1.bin .. data_batch_5.bin, test_batch.bin
//   CIFAR-100  coarse and fine label   train.bin, test.bin            (the fine label is the class)
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/dataset.hpp"

namespace millrace::io {

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
  [[nodiscard]] std::size_t record_bytes() const noexcept {
    return label_limits.size() + 3 * 32 * 32;
  }
  [[nodiscard]] int classes() const noexcept { return label_limits.back(); }
};
[[nodiscard]] const CifarLayout& layout_of(CifarKind kind) noexcept;

/// Checks the contents of one file: a whole number of records, at least one, and every label in
/// range. Error(Data) names `file`, the size or the record, and the value.
void check_cifar_records(std::span<const std::uint8_t> bytes, CifarKind kind,
                         std::string_view file);

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

}  // namespace millrace::io
