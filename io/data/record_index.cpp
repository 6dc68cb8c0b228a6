// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "core/error.hpp"
#include "io/data/example.hpp"
#include "io/data/files.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr IndexFormat<RecordIndex> kFormat = {
    .kind = {.magic = "MLRINDEX", .version = 2}, .write = write_index, .parse = parse_index};
constexpr std::uint64_t kMaxOffsetLinesBytes = std::uint64_t{32} << 20;

fs::path lines_path(const fs::path& shard) { return fs::path(shard) += ".idx"; }

IndexedFile look_at(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  const std::optional<FileStamp> stamp = stamp_of(path);
  if (!stamp) fail_io("inspect", path, errno);
  return {.name = name,
          .bytes = stamp->bytes,
          .modified_ns = stamp->modified_ns,
          .lines_modified_ns = modified_ns(lines_path(path)),
          .first = 0};
}

// Whether an .idx file lists every record found in its shard.
bool lists_all(std::span<const OffsetLine> lines, const FileRecords& records) {
  return std::ranges::all_of(records.entries, [&](const RecordEntry& entry) {
    return lists(lines, {entry.offset, entry.bytes + kFrameBytes});
  });
}

// Adds records that the .idx lists beyond the end of the shard. The shard alone does not show that
// it was truncated between two records.
void add_beyond_end(std::span<const OffsetLine> lines, std::uint64_t end, FileRecords& records) {
  for (std::size_t i = 0; i < lines.size() && records.bad.size() < kMostBadOfFile; ++i)
    if (lines[i].offset >= end)
      records.bad.push_back(
          {.file = 0,
           .record = i,
           .offset = lines[i].offset,
           .problem = fmt::format(
               "the shard ends at {}, but its .idx lists this record: the shard is truncated: "
               "fetch it again; or the .idx belongs to another shard: remove it",
               end)});
}

struct ScannedShard {
  FileRecords records;
  std::string notice;  // about its .idx file
};

// Scans one shard, with its .idx file if there is one.
ScannedShard scan_shard(const fs::path& path) {
  ScannedShard shard;
  std::vector<OffsetLine> lines;
  try {
    if (auto read = read_offset_lines(path)) lines = std::move(*read);
  } catch (const Error& error) {
    shard.notice = fmt::format("{}; the file is ignored", error.what());
  }
  ByteWindow file(path);
  refuse_gzip(file);
  FileRecords& records = shard.records = scan_records(file, offsets_in(lines));
  const bool fits = lists_all(lines, records);
  if (fits) add_beyond_end(lines, file.size(), records);
  // If the shard is damaged, an .idx with more records may be right.
  if (!lines.empty() && (!fits || (records.bad.empty() && lines.size() != records.entries.size())))
    shard.notice = fmt::format(
        "{} does not match the records of its shard and is ignored: remove it or create it again, "
        "or fetch both again",
        lines_path(path).string());
  return shard;
}

RecordIndex make_index(const fs::path& folder, std::span<const IndexedFile> files,
                       const IndexOptions& options) {
  std::vector<ScannedShard> parts = scan_files(folder, files, options, scan_shard);
  RecordIndex index;
  index.files.assign(files.begin(), files.end());
  std::size_t entries = 0;
  for (const ScannedShard& part : parts) entries += part.records.entries.size();
  index.entries.reserve(entries);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    index.append(i, std::exchange(parts[i].records, {}));
    if (!parts[i].notice.empty()) index.notices.push_back(std::move(parts[i].notice));
  }
  return index;
}

// Whether a scan of files of these sizes could have produced the index.
bool is_consistent(const RecordIndex& index) {
  std::uint64_t first = 0;
  for (std::size_t f = 0; f < index.files.size(); ++f) {
    const IndexedFile& file = index.files[f];
    const std::uint64_t end =
        f + 1 < index.files.size() ? index.files[f + 1].first : index.entries.size();
    if (file.first != first || end < first || end > index.entries.size()) return false;
    std::uint64_t free_from = 0;
    for (std::uint64_t i = first; i < end; ++i) {
      const RecordEntry& entry = index.entries[i];
      if (entry.offset < free_from || entry.bytes > kMaxRecordBytes || entry.offset > file.bytes ||
          entry.bytes + kFrameBytes > file.bytes - entry.offset)
        return false;
      free_from = entry.offset + entry.bytes + kFrameBytes;
    }
    first = end;
  }
  if (index.files.empty() && !index.entries.empty()) return false;
  return std::ranges::all_of(index.bad,
                             [&](const BadRecord& bad) { return bad.file < index.files.size(); });
}

}  // namespace

std::vector<IndexedFile> look_at_all(const RecordFileSet& set) {
  std::vector<IndexedFile> files;
  files.reserve(set.files.size());
  for (const std::string& name : set.files) files.push_back(look_at(set.folder, name));
  return files;
}

bool same_files(std::span<const IndexedFile> a, std::span<const IndexedFile> b) {
  return std::ranges::equal(a, b, [](const IndexedFile& x, const IndexedFile& y) {
    return x.name == y.name && x.bytes == y.bytes && x.modified_ns == y.modified_ns &&
           x.lines_modified_ns == y.lines_modified_ns;
  });
}

std::size_t RecordIndex::file_of(std::size_t index) const {
  const auto after = std::ranges::upper_bound(files, index, {}, &IndexedFile::first);
  return static_cast<std::size_t>(after - files.begin()) - 1;
}

std::uint64_t RecordIndex::record_of(std::size_t index) const {
  const std::size_t file = file_of(index);
  const auto before = std::ranges::count_if(bad, [&](const BadRecord& record) {
    return record.file == file && record.offset < entries[index].offset;
  });
  return index - files[file].first + static_cast<std::uint64_t>(before);
}

void RecordIndex::append(std::size_t file, FileRecords&& records) {
  files[file].first = entries.size();
  entries.insert(entries.end(), records.entries.begin(), records.entries.end());
  for (BadRecord& record : records.bad) {
    record.file = static_cast<std::uint32_t>(file);
    bad.push_back(std::move(record));
  }
}

FileRecords scan_records(ByteWindow& file, std::span<const std::uint64_t> known) {
  FileRecords records;
  std::uint64_t number = 0;
  const auto bad = [&](const Frame& frame, std::string problem) {
    records.bad.push_back(
        {.file = 0, .record = number, .offset = frame.begin, .problem = std::move(problem)});
  };
  FrameWalk walk(file, known);
  for (Frame frame = walk.next(); frame.kind != Frame::Kind::End; frame = walk.next(), ++number) {
    if (records.bad.size() == kMostBadOfFile) {
      bad(frame, fmt::format("{} records before it are bad; the rest of the file is left out",
                             kMostBadOfFile));
      break;
    }
    std::int64_t label = 0;
    std::string problem = std::move(frame.problem);
    if (frame.kind == Frame::Kind::Record)
      problem = parse_label(file, frame.begin + kFrameHeadBytes, frame.payload_bytes(), label);
    if (problem.empty() && !std::in_range<std::int32_t>(label))
      problem = fmt::format("image/class/label is {}, which is not a class", label);
    if (problem.empty())
      records.entries.push_back({.offset = frame.begin,
                                 .bytes = static_cast<std::uint32_t>(frame.payload_bytes()),
                                 .label = static_cast<std::int32_t>(label)});
    else
      bad(frame, std::move(problem));
  }
  return records;
}

std::vector<OffsetLine> parse_offset_lines(std::string_view text, std::string_view label) {
  std::vector<OffsetLine> lines;
  std::uint64_t expected = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const char* const end = line.data() + line.size();
    OffsetLine read;
    const auto first = std::from_chars(line.data(), end, read.offset);
    const bool two = first.ec == std::errc() && first.ptr != end && *first.ptr == ' ';
    const auto second = two ? std::from_chars(first.ptr + 1, end, read.bytes) : first;
    if (!two || second.ec != std::errc() || second.ptr != end)
      fail(ErrorKind::Data, "{}: line {} is not \"offset bytes\"", label, lines.size() + 1);
    if (read.offset != expected || read.bytes < kFrameBytes ||
        read.bytes > kMaxRecordBytes + kFrameBytes)
      fail(ErrorKind::Data, "{}: line {} has {} bytes at offset {}, expected a record at offset {}",
           label, lines.size() + 1, read.bytes, read.offset, expected);
    expected = read.offset + read.bytes;
    lines.push_back(read);
  }
  return lines;
}

std::optional<std::vector<OffsetLine>> read_offset_lines(const fs::path& shard) {
  const fs::path path = lines_path(shard);
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return {};
  return parse_offset_lines(read_text(path, kMaxOffsetLinesBytes), path.string());
}

std::vector<std::uint64_t> offsets_in(std::span<const OffsetLine> lines) {
  std::vector<std::uint64_t> offsets(lines.size());
  std::ranges::transform(lines, offsets.begin(), &OffsetLine::offset);
  return offsets;
}

bool lists(std::span<const OffsetLine> lines, const OffsetLine& record) {
  const auto line = std::ranges::lower_bound(lines, record.offset, {}, &OffsetLine::offset);
  return line != lines.end() && *line == record;
}

OpenedIndex<RecordIndex> open_record_index(const RecordFileSet& set, Split split,
                                           const IndexOptions& options) {
  const std::vector<IndexedFile> files = look_at_all(set);
  auto opened = open_index(
      kFormat, set.folder, split, options,
      [&](const RecordIndex& cached) { return same_files(cached.files, files); },
      [&] { return make_index(set.folder, files, options); });
  opened.notices.insert(opened.notices.begin(), opened.index.notices.begin(),
                        opened.index.notices.end());
  return opened;
}

std::vector<std::byte> write_index(const RecordIndex& index) {
  return write_lists(index.files, index.entries, index.bad, index.notices);
}

std::optional<RecordIndex> parse_index(std::span<const std::byte> content) {
  RecordIndex index;
  const bool whole = read_lists(content, index.files, index.entries, index.bad, index.notices);
  if (!whole || !is_consistent(index)) return {};
  return index;
}

}  // namespace millrace::io
