// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/records/byte_window.hpp"
#include "io/records/encoded_source.hpp"
#include "io/records/record_files.hpp"

namespace millrace::io {

/// A good record: where its frame begins, bytes of its payload, its label as stored.
struct RecordEntry {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::int32_t label = 0;
  friend bool operator==(const RecordEntry&, const RecordEntry&) = default;
};

/// A record, or a stretch of a file without one, that cannot be used.
struct BadRecord {
  std::uint32_t file = 0;
  std::uint64_t record = 0;  ///< its number in the file
  std::uint64_t offset = 0;
  std::string problem;
  friend bool operator==(const BadRecord&, const BadRecord&) = default;
};

/// One shard as it was when it was indexed.
struct IndexedFile {
  std::string name;  ///< in the folder
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t lines_modified_ns = -1;  ///< of its .idx file; -1 when there is none
  std::uint64_t first = 0;              ///< number of its first entry
  friend bool operator==(const IndexedFile&, const IndexedFile&) = default;
};

/// Every record of a set of shards: good ones by file and offset, bad ones apart. Notices are about
/// .idx files that do not fit, and stay with the index.
struct RecordIndex {
  std::vector<IndexedFile> files;
  std::vector<RecordEntry> entries;
  std::vector<BadRecord> bad;
  std::vector<std::string> notices;

  /// The file of entry `index`.
  [[nodiscard]] std::size_t file_of(std::size_t index) const;
  /// The number that entry `index` has in its file, bad records counted.
  [[nodiscard]] std::uint64_t record_of(std::size_t index) const;
  friend bool operator==(const RecordIndex&, const RecordIndex&) = default;
};

/// Entries and bad records of one file; of `bad`, file is 0. `known` are places of records, tried
/// where the file is damaged (FrameWalk). Errors: Io.
struct FileRecords {
  std::vector<RecordEntry> entries;
  std::vector<BadRecord> bad;
};
[[nodiscard]] FileRecords scan_records(ByteWindow& file, std::span<const std::uint64_t> known = {});

/// An index in the style of DALI, "<shard>.idx": a line "offset bytes" for every record, frames
/// included.
struct OffsetLine {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const OffsetLine&, const OffsetLine&) = default;
};
/// The lines of such a file. Errors: Data, naming `label` and the line, when it is no such file or
/// its records do not follow each other.
[[nodiscard]] std::vector<OffsetLine> parse_offset_lines(std::string_view text,
                                                         std::string_view label);
/// The lines of "<shard>.idx", or nothing when there is no such file. Errors: Data, Io.
[[nodiscard]] std::optional<std::vector<OffsetLine>> read_offset_lines(
    const std::filesystem::path& shard);

struct IndexOptions {
  unsigned threads = 0;  ///< 0: one a core
  std::filesystem::path
      cache_folder;           ///< used where the data's own cannot be written; may be empty
  ProgressCallback progress;  ///< in bytes of files
  TellCallback tell;          ///< that another process makes the index
};

/// What came of opening an index.
struct OpenedIndex {
  RecordIndex index;
  bool made = false;                 ///< rather than read from a cache
  std::filesystem::path place;       ///< of the cached file; empty when it could not be written
  std::vector<std::string> notices;  ///< those of the index, and a cache that cannot be written
};

/// The index of a set of shards: from its cache where that is about the very same files (names,
/// sizes, times of change, .idx files included), or else made by threads and cached. Safe in
/// several processes at once. Errors: Io.
[[nodiscard]] OpenedIndex open_record_index(const RecordFileSet& set, Split split,
                                            const IndexOptions& options);

/// An index as the content of a sealed file and back; nothing when the bytes are none, or
/// contradict themselves.
[[nodiscard]] std::vector<std::byte> write_index(const RecordIndex& index);
[[nodiscard]] std::optional<RecordIndex> parse_index(std::span<const std::byte> content);

}  // namespace millrace::io
