// SPDX-License-Identifier: Apache-2.0
//
// WebDataset shards: tar archives in which files of equal name belong together.
//
//   DIR/train-000000.tar   DIR/val-000000.tar     here or in train/, val/ (there also 000000.tar)
//     n01/a.jpg  n01/a.cls                        the image and its class: a number or a name
//     n01/b.png  n01/b.json                       {"label": 7}, read if there is no .cls
//
// The name of a file up to its first dot is the key of its sample; the rest says what it is. An
// index of all samples is made at first use, as for TFRecord files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/record_index.hpp"

namespace millrace::io {

/// The archives of one split; see record_files.hpp for the members. Errors: Data if a folder has
/// archives of several sets; Io.
[[nodiscard]] RecordFileSet find_archives(const std::filesystem::path& directory, Split split);
/// "train-*.tar in DIR, DIR/train" for messages.
[[nodiscard]] std::string describe_archive_places(const std::filesystem::path& directory,
                                                  Split split);

/// The samples of one archive. An entry is the place of its image; its label is a position among
/// the `texts`, the classes as the archive calls them. `keys` are the first samples that use them.
struct ArchiveSamples {
  FileRecords samples;
  std::vector<std::string> texts;
  std::vector<std::string> keys;
};
/// Errors: Data if the archive is damaged; Io.
[[nodiscard]] ArchiveSamples scan_archive(ByteWindow& file);

/// All samples of a set of archives. `places` say where a text was found first.
struct ArchiveIndex {
  RecordIndex records;
  std::vector<std::string> texts;
  std::vector<std::string> places;
  friend bool operator==(const ArchiveIndex&, const ArchiveIndex&) = default;
};

/// The index: from a cache if it matches the archives, otherwise made and cached. Errors: as
/// scan_archive.
[[nodiscard]] ArchiveIndex open_archive_index(const RecordFileSet& set, Split split,
                                              const IndexOptions& options,
                                              std::vector<std::string>& notices);

/// Converts an index to the content of a cached file and back; empty if the bytes are not a
/// consistent index.
[[nodiscard]] std::vector<std::byte> write_archive_index(const ArchiveIndex& index);
[[nodiscard]] std::optional<ArchiveIndex> parse_archive_index(std::span<const std::byte> content);

}  // namespace millrace::io
