// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/archive_set.hpp"
#include "io/data/class_folders.hpp"
#include "io/data/dataset.hpp"
#include "io/data/parallel.hpp"
#include "io/data/record_index.hpp"
#include "io/data/record_set.hpp"
#include "tools/data/image_codec.hpp"

namespace millrace::io {

/// Inspects an image; returns the problem, or "". Called from many threads.
using InspectImage = std::function<std::string(std::span<const std::byte>)>;

struct CheckOptions {
  unsigned threads = 0;  ///< 0: one per core
  std::int32_t label_offset = 1;
  std::int64_t classes = 1000;
  InspectImage inspect = image_problem;  ///< empty: images are not inspected
  ProgressCallback progress;             ///< in bytes of shards, or in images of a folder
};

/// A problem and its location. Problems of whole files have no record.
struct Finding {
  std::string file;
  std::optional<std::uint64_t> record = std::nullopt;
  std::uint64_t offset = 0;
  std::string problem;
  friend bool operator==(const Finding&, const Finding&) = default;
};

/// "train-00000-of-01024, record 12 at offset 345: its data fail their checksum", "a.JPEG: ..."
[[nodiscard]] std::string to_string(const Finding& finding);

struct CheckReport {
  std::uint64_t files = 0;
  std::uint64_t records = 0;  ///< good and bad
  std::uint64_t bytes = 0;
  std::vector<Finding> findings;          ///< sorted by file and offset
  std::vector<std::string> notices = {};  ///< about files left out
};

/// Reads every byte of a set of shards: frames, checksums, Examples, keys, labels, images with
/// `inspect`, and .idx files if present. After an error it continues with the next record that it
/// can find. Missing, empty and unreadable shards are findings, too.
[[nodiscard]] CheckReport check_records(const RecordFileSet& set, const CheckOptions& options);

/// Reads every image of class folders and of the folders in them. Findings are files that training
/// counts as bad: empty files, and files with an image's name that are neither JPEG nor PNG. A
/// notice counts other files.
[[nodiscard]] CheckReport check_class_folders(const ClassFolders& folders,
                                              const CheckOptions& options);

/// Reads every image of WebDataset archives. Bad samples are findings.
[[nodiscard]] CheckReport check_archives(const ArchiveSet& archives, const CheckOptions& options);

/// Checks the shards or class folders in `directory`, opened as `open` says. Errors:
/// Data if there are none; those of what describes the images.
[[nodiscard]] CheckReport check_images(const std::filesystem::path& directory, Split split,
                                       const CheckOptions& options, OpenOptions open = {});

/// Reads every byte of a file of packed images: header, table with its sizes and labels, checksums
/// of images and boxes. Never fails: unreadable parts are findings. Progress is in images.
[[nodiscard]] CheckReport check_packed(const std::filesystem::path& path, unsigned threads,
                                       const ProgressCallback& progress);

}  // namespace millrace::io
