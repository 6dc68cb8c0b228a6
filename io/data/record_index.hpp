// SPDX-License-Identifier: Apache-2.0
//
// Where shards lie: TFRecord files as in the trainings that millrace replaces, and WebDataset
// archives.
//
//   DIR/train-00000-of-01024       DIR/validation-00000-of-00128              flat
//   DIR/train/train-*              DIR/validation/validation-*                as converters write
//   DIR/img_train/img_train-*      DIR/img_val/img_val-*
//   DIR/imagenet_train_subset*     DIR/imagenet_val_subset*                   a folder or files
//   DIR/train-000000.tar           DIR/val-000000.tar       archives; in DIR/train/ also 000000.tar
//
// All names of records are accepted in DIR itself and in each folder of their split, with or
// without an extension (".tfrecord"). If a name has a number ("-00003-of-01024"), names without a
// number or with another extension are left out as copies or notes. If no file has the form of a
// shard's name and none begins with a record, the next place is searched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "io/data/dataset.hpp"
#include "io/data/files.hpp"
#include "io/data/index_cache.hpp"

namespace millrace::io {

// The files (record_files.cpp).

/// The shards of one split.
struct RecordFileSet {
  std::filesystem::path folder;
  std::vector<std::string> files;     ///< names in the folder, sorted by number or name
  std::vector<std::string> missing;   ///< names of the missing shards of "-of-N"
  std::vector<std::string> empty;     ///< those of `files` with 0 bytes, from an interrupted copy
  std::vector<std::string> left_out;  ///< names of other form beside numbered TFRecord files
};

/// "-00017-of-01024" in a name, before its ending.
struct ShardNumber {
  std::uint32_t number = 0;
  std::uint32_t total = 0;
  std::size_t number_at = 0;  ///< position of the digits
  std::size_t ending_at = 0;  ///< of ".tfrecord", or the end of the name
};
/// Empty for other names.
[[nodiscard]] std::optional<ShardNumber> parse_shard_number(std::string_view name);

/// The first place with files for a split; a set without files if there is none. Errors: Data if a
/// folder has shards of several sets ("-of-00008" and "-of-01024"); Io.
[[nodiscard]] RecordFileSet find_record_files(const std::filesystem::path& directory, Split split);

/// "train-*, img_train-* or imagenet_train_subset* in DIR, DIR/train, ..." for messages.
[[nodiscard]] std::string describe_record_places(const std::filesystem::path& directory,
                                                 Split split);

/// The archives of one split: missing are those between the first and the last number, and up to
/// "-of-N" if the names say it. Errors: Data if a folder has archives of several sets; Io.
[[nodiscard]] RecordFileSet find_archives(const std::filesystem::path& directory, Split split);

/// "train-*.tar in DIR, DIR/train" for messages.
[[nodiscard]] std::string describe_archive_places(const std::filesystem::path& directory,
                                                  Split split);

/// "3 of 1024 shards are missing: train-00017-of-01024, ..."; "" when none is.
[[nodiscard]] std::string describe_missing(const RecordFileSet& set);
/// "1 of 1024 shards is empty: train-00017-of-01024"; "" when none is.
[[nodiscard]] std::string describe_empty(const RecordFileSet& set);
/// "1 file of another form lies beside numbered shards and is left out: train-00017-of-01024.bak";
/// "" when there is none.
[[nodiscard]] std::string describe_left_out(const RecordFileSet& set);

// Their records.

/// A good record: offset of its frame, bytes of its payload, label as stored.
struct RecordEntry {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::int32_t label = 0;
  static constexpr auto kFields =
      std::tuple(&RecordEntry::offset, &RecordEntry::bytes, &RecordEntry::label);
  friend bool operator==(const RecordEntry&, const RecordEntry&) = default;
};

/// An unusable record, or a part of a file without records.
struct BadRecord {
  std::uint32_t file = 0;
  std::uint64_t record = 0;  ///< number in the file
  std::uint64_t offset = 0;
  std::string problem;
  static constexpr auto kFields =
      std::tuple(&BadRecord::file, &BadRecord::record, &BadRecord::offset, &BadRecord::problem);
  friend bool operator==(const BadRecord&, const BadRecord&) = default;
};

/// One shard when it was indexed.
struct IndexedFile {
  std::string name;  ///< in the folder
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t lines_modified_ns = -1;  ///< of its .idx file; -1: none
  std::uint64_t first = 0;              ///< number of its first entry
  static constexpr auto kFields =
      std::tuple(&IndexedFile::name, &IndexedFile::bytes, &IndexedFile::modified_ns,
                 &IndexedFile::lines_modified_ns, &IndexedFile::first);
  friend bool operator==(const IndexedFile&, const IndexedFile&) = default;
};

/// The shards of a set as they are now, without entries. Errors: Io.
[[nodiscard]] std::vector<IndexedFile> look_at_all(const RecordFileSet& set);
/// Whether names, sizes and modification times agree.
[[nodiscard]] bool same_files(std::span<const IndexedFile> a, std::span<const IndexedFile> b);

/// What `scan` returns for the path of every file, called by several threads; reports progress.
template <class Scan>
[[nodiscard]] auto scan_files(const std::filesystem::path& folder,
                              std::span<const IndexedFile> files, const IndexOptions& options,
                              const Scan& scan) {
  std::vector<decltype(scan(folder))> parts(files.size());
  std::uint64_t bytes = 0;
  for (const IndexedFile& file : files) bytes += file.bytes;
  ProgressMeter meter(options.progress, bytes);
  parallel_for(files.size(), options.threads, [&](std::size_t i) {
    parts[i] = scan(folder / files[i].name);
    meter.add(files[i].bytes);
  });
  return parts;
}

/// A file with more bad records needs inspection, not training.
inline constexpr std::size_t kMostBadOfFile = 1000;

/// Entries and bad records of one file; `file` of each bad record is 0.
struct FileRecords {
  std::vector<RecordEntry> entries;
  std::vector<BadRecord> bad;
};

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
  /// Adds what was found in file `file`, after those before it.
  void append(std::size_t file, FileRecords&& records);
  friend bool operator==(const RecordIndex&, const RecordIndex&) = default;
};

/// Scans one file. `known` are offsets of records, tried where the file is damaged (FrameWalk).
/// Errors: Io.
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

/// The index of a set of shards: from the cache if it matches the files (names, sizes and
/// modification times, .idx files included), otherwise built by threads and cached. Its notices are
/// also those of the opening. Errors: Io.
[[nodiscard]] OpenedIndex<RecordIndex> open_record_index(const RecordFileSet& set, Split split,
                                                         const IndexOptions& options);

/// Converts an index to the content of a cached file and back; empty if the bytes are not a
/// consistent index.
[[nodiscard]] std::vector<std::byte> write_index(const RecordIndex& index);
[[nodiscard]] std::optional<RecordIndex> parse_index(std::span<const std::byte> content);

}  // namespace millrace::io
