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

#include "io/data/files.hpp"
#include "io/data/index_cache.hpp"
#include "io/data/record_files.hpp"

namespace millrace::io {

/// A good record: offset of its frame, bytes of its payload, label as stored.
struct RecordEntry {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::int32_t label = 0;
  friend bool operator==(const RecordEntry&, const RecordEntry&) = default;
};

/// An unusable record, or a part of a file without records.
struct BadRecord {
  std::uint32_t file = 0;
  std::uint64_t record = 0;  ///< number in the file
  std::uint64_t offset = 0;
  std::string problem;
  friend bool operator==(const BadRecord&, const BadRecord&) = default;
};

/// One shard when it was indexed.
struct IndexedFile {
  std::string name;  ///< in the folder
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t lines_modified_ns = -1;  ///< of its .idx file; -1: none
  std::uint64_t first = 0;              ///< number of its first entry
  friend bool operator==(const IndexedFile&, const IndexedFile&) = default;
};

/// The shards of a set as they are now, without entries. Errors: Io.
[[nodiscard]] std::vector<IndexedFile> look_at_all(const RecordFileSet& set);
/// Whether names, sizes and modification times agree.
[[nodiscard]] bool same_files(std::span<const IndexedFile> a, std::span<const IndexedFile> b);

/// All records of a set of shards: good ones by file and offset, bad ones separately. Notices are
/// about .idx files that do not match; they are stored with the index.
struct RecordIndex {
  std::vector<IndexedFile> files;
  std::vector<RecordEntry> entries;
  std::vector<BadRecord> bad;
  std::vector<std::string> notices;

  /// The file of entry `index`.
  [[nodiscard]] std::size_t file_of(std::size_t index) const;
  /// The number of entry `index` in its file, with bad records counted.
  [[nodiscard]] std::uint64_t record_of(std::size_t index) const;
  friend bool operator==(const RecordIndex&, const RecordIndex&) = default;
};

/// Entries and bad records of one file; `file` of each bad record is 0. `known` are offsets of
/// records, tried where the file is damaged (FrameWalk). Errors: Io.
struct FileRecords {
  std::vector<RecordEntry> entries;
  std::vector<BadRecord> bad;
};
[[nodiscard]] FileRecords scan_records(ByteWindow& file, std::span<const std::uint64_t> known = {});

/// A line of DALI's index "<shard>.idx": "offset bytes" of a record with its frame.
struct OffsetLine {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const OffsetLine&, const OffsetLine&) = default;
};
/// Parses the lines of an .idx file. Errors: Data, naming `label` and the line, if it has another
/// format or its records are not contiguous.
[[nodiscard]] std::vector<OffsetLine> parse_offset_lines(std::string_view text,
                                                         std::string_view label);
/// The lines of "<shard>.idx"; empty if the file does not exist. Errors: Data, Io.
[[nodiscard]] std::optional<std::vector<OffsetLine>> read_offset_lines(
    const std::filesystem::path& shard);
/// The offsets in these lines, for FrameWalk.
[[nodiscard]] std::vector<std::uint64_t> offsets_in(std::span<const OffsetLine> lines);
/// Whether the lines contain this record.
[[nodiscard]] bool lists(std::span<const OffsetLine> lines, const OffsetLine& record);

/// Result of opening an index.
struct OpenedIndex {
  RecordIndex index;
  bool made = false;                 ///< false: read from a cache
  std::filesystem::path place;       ///< the cached file; empty if it could not be written
  std::vector<std::string> notices;  ///< of the index, and about a cache that cannot be written
};

/// The index of a set of shards: from the cache if it matches the files (names, sizes and
/// modification times, .idx files included), otherwise built by threads and cached. Several
/// processes may call it at the same time. Errors: Io.
[[nodiscard]] OpenedIndex open_record_index(const RecordFileSet& set, Split split,
                                            const IndexOptions& options);

/// Converts an index to the content of a cached file and back; empty if the bytes are not a
/// consistent index.
[[nodiscard]] std::vector<std::byte> write_index(const RecordIndex& index);
[[nodiscard]] std::optional<RecordIndex> parse_index(std::span<const std::byte> content);

}  // namespace millrace::io
