// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/records/encoded_source.hpp"
#include "io/records/image_folder.hpp"
#include "io/records/record_files.hpp"

namespace millrace::io {

/// Looks at a picture, as whole as it likes; returns what is wrong with it, or "". Called from many
/// threads.
using InspectPicture = std::function<std::string(std::span<const std::byte>)>;

struct CheckOptions {
  unsigned threads = 0;  ///< 0: one a core
  std::int32_t label_offset = 1;
  std::int64_t classes = 1000;
  InspectPicture inspect;     ///< empty: pictures are not looked at
  ProgressCallback progress;  ///< in bytes of shards, or in pictures of a folder
};

/// Something bad: where it is and what. Of whole files there is no record.
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
  std::vector<Finding> findings;          ///< by file and offset
  std::vector<std::string> notices = {};  ///< about files that are left out
};

/// Reads every byte of a set of shards: frames, checksums, Examples, keys, labels, what
/// `inspect` looks at, and .idx files where there are some. Goes on after an error with the next
/// record that can be found. Missing and empty shards and files that cannot be read are findings,
/// too.
[[nodiscard]] CheckReport check_records(const RecordFileSet& set, const CheckOptions& options);

/// Reads every picture of class folders. Findings are files that training counts as bad: empty
/// ones, and those that are neither JPEG nor PNG under a name that says so; a notice counts the
/// others.
[[nodiscard]] CheckReport check_class_folders(const ClassFolders& folders,
                                              const CheckOptions& options);

/// Whichever of both lies in `directory`. Errors: Data when neither does.
[[nodiscard]] CheckReport check_pictures(const std::filesystem::path& directory, Split split,
                                         const CheckOptions& options);

}  // namespace millrace::io
