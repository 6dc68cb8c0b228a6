// SPDX-License-Identifier: Apache-2.0
#include "io/data/archive_set.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/image_format.hpp"
#include "io/data/bad_images.hpp"
#include "io/data/little_endian.hpp"

namespace millrace::io {

ArchiveSet::ArchiveSet(const RecordFileSet& set, Split split, const KnownClasses& known,
                       const OpenOptions& options, const std::filesystem::path& words)
    : folder_(set.folder), files_(set) {
  refuse_gaps(set, options.missing);
  index_ = open_archive_index(set, split, options.index, notices_);
  judge_bad(options.max_bad_fraction);
  number(known);
  titles_ = with_words(known_.names, words);
  for (std::int64_t i = 0; i < size(); ++i) {
    std::array<std::byte, 8> bytes{};
    store_little(entry(i).bytes, bytes.data());
    store_little(static_cast<std::uint32_t>(label(i)), bytes.data() + 4);
    fingerprint_ = crc32c(bytes, fingerprint_);
  }
}

void ArchiveSet::refuse_gaps(const RecordFileSet& set, MissingShards missing) {
  for (std::string gap : {describe_missing(set), describe_empty(set)}) {
    if (gap.empty()) continue;
    if (missing == MissingShards::Refused || !set.empty.empty())
      fail(ErrorKind::Data, "{}: fetch them again{}", gap,
           set.empty.empty() ? ", or train without them (`allow-missing-shards`)" : "");
    notices_.push_back(std::move(gap));
  }
}

void ArchiveSet::judge_bad(double max_bad_fraction) {
  const std::int64_t bad = std::ssize(index_.records.bad);
  const std::int64_t all = bad + size();
  if (all == 0)
    fail(ErrorKind::Data,
         "{}: the archives hold no images: expected files like 0001.jpg and "
         "0001.cls",
         folder_.string());
  if (bad == 0) return;
  const std::string count =
      fmt::format("{}: {} of {} samples are bad (`millrace data check` lists them)",
                  folder_.string(), bad, all);
  if (size() == 0 || too_many_bad(bad, all, max_bad_fraction))
    fail(ErrorKind::Data, "{}, the first: {}; {}", count, describe(index_.records.bad.front()),
         describe_limit(all, max_bad_fraction));
  add_left_out(notices_, count + ", and are left out", index_.records.bad.size(),
               [this](std::size_t i) { return describe(index_.records.bad[i]); });
}

void ArchiveSet::number(KnownClasses known) {
  const auto place_of = [this](std::size_t i) { return (folder_ / index_.places[i]).string(); };
  NumberedClasses numbered =
      number_classes({.texts = index_.texts, .place_of = place_of}, std::move(known));
  numbers_ = std::move(numbered.numbers);
  known_ = std::move(numbered.known);
}

std::string ArchiveSet::describe(const BadRecord& bad) const {
  return fmt::format("{}: {}", describe_place(path_of(bad), bad.record, bad.offset), bad.problem);
}

const RecordEntry& ArchiveSet::entry(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < size());
  return index_.records.entries[static_cast<std::size_t>(index)];
}

std::int32_t ArchiveSet::label(std::int64_t index) const {
  return numbers_[static_cast<std::size_t>(entry(index).label)];
}

std::uint64_t ArchiveSet::stored_bytes(std::int64_t index) const { return entry(index).bytes; }

std::string ArchiveSet::where(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return describe_place(files_.path(index_.records.file_of(i)), index_.records.record_of(i),
                        entry(index).offset);
}

StoredImage ArchiveSet::stored(std::int64_t index, ReadBuffer& buffer) const {
  const RecordEntry& at = entry(index);
  buffer.bytes.resize(at.bytes);
  files_.read(index_.records.file_of(static_cast<std::size_t>(index)), at.offset, buffer.bytes);
  if (format_of(buffer.bytes) == ImageFormat::Other)
    fail(ErrorKind::Data, "{}: neither a JPEG nor a PNG: damaged, or changed since it was indexed",
         where(index));
  return {.bytes = buffer.bytes};
}

}  // namespace millrace::io
