// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_set.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/counted.hpp"
#include "core/crc32c.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/example.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

// Half of the process's limit: logs, sockets and checkpoints need descriptors, too.
std::int64_t descriptors_to_keep() {
  constexpr rlim_t kAtMost = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<std::int64_t>(std::min(limit.rlim_cur, kAtMost) / 2);
}

}  // namespace

std::string describe_place(const std::filesystem::path& file, std::uint64_t record,
                           std::uint64_t offset) {
  return fmt::format("{}, record {} at offset {}", printable(file.string()), record, offset);
}

OpenShards::OpenShards(const RecordFileSet& set)
    : open_(std::make_unique<std::atomic<int>[]>(set.files.size())),
      may_open_(descriptors_to_keep()) {
  for (const std::string& name : set.files) paths_.push_back(set.folder / name);
  for (std::size_t i = 0; i < paths_.size(); ++i) open_[i] = -1;
}

OpenShards::~OpenShards() {
  for (std::size_t i = 0; i < paths_.size(); ++i)
    if (const int descriptor = open_[i]; descriptor >= 0) ::close(descriptor);
}

bool OpenShards::keep(std::size_t file, int descriptor) const noexcept {
  if (may_open_.fetch_sub(1) > 0) {
    int none = -1;
    if (open_[file].compare_exchange_strong(none, descriptor)) return true;
  }
  may_open_.fetch_add(1);
  return false;
}

void OpenShards::read(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const {
  if (const int descriptor = open_[file]; descriptor >= 0)
    return read_exactly(descriptor, offset, out, paths_[file]);
  const UniqueFd opened = open_file(paths_[file], O_RDONLY);
  read_exactly(opened.get(), offset, out, paths_[file]);
  const int kept = ::fcntl(opened.get(), F_DUPFD_CLOEXEC, 0);
  if (kept >= 0 && !keep(file, kept)) ::close(kept);
}

const RecordEntry& ShardSet::entry(std::int64_t index) const {
  MILLRACE_ASSERT(index >= 0 && index < size());
  return index_.entries[static_cast<std::size_t>(index)];
}

std::string ShardSet::where(std::int64_t index) const {
  const auto i = static_cast<std::size_t>(index);
  return describe_place(files_.path(index_.file_of(i)), index_.record_of(i), entry(index).offset);
}

std::string ShardSet::describe(const BadRecord& bad) const {
  return fmt::format("{}: {}", describe_place(path_of(bad), bad.record, bad.offset), bad.problem);
}

void ShardSet::read_from(std::int64_t index, std::span<std::byte> out) const {
  files_.read(index_.file_of(static_cast<std::size_t>(index)), entry(index).offset, out);
}

void ShardSet::note_gaps(const RecordFileSet& set, MissingShards missing, const Gaps& gaps) {
  const bool may_lack = set.empty.empty() || gaps.empty == MissingShards::Accepted;
  for (std::string gap : {describe_missing(set), describe_empty(set)}) {
    if (gap.empty()) continue;
    if (missing == MissingShards::Refused || !may_lack)
      fail(ErrorKind::Data, "{}: {} them again{}", gap, gaps.remedy,
           may_lack ? ", or train without them (`allow-missing-shards`)" : "");
    notices_.push_back(std::move(gap));
  }
}

void ShardSet::judge_bad(double max_bad_fraction, std::string_view none, const std::string& count,
                         const std::string& head) {
  const std::int64_t bad = std::ssize(index_.bad);
  if (bad + size() == 0) fail(ErrorKind::Data, "{}: {}", folder_.string(), none);
  leave_out_bad({.bad = bad, .all = bad + size(), .max_fraction = max_bad_fraction}, count, head,
                notices_, [this](std::size_t i) { return describe(index_.bad[i]); });
}

std::uint32_t ShardSet::checksum(const std::function<std::int32_t(std::int64_t)>& number) const {
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    std::array<std::byte, 8> bytes{};
    store_little(entry(i).bytes, bytes.data());
    store_little(static_cast<std::uint32_t>(number(i)), bytes.data() + 4);
    crc = crc32c(bytes, crc);
  }
  return crc;
}

RecordSet::RecordSet(const RecordFileSet& set, Split split, const OpenOptions& options)
    : ShardSet(set), label_offset_(options.label_offset), classes_(options.classes) {
  note_gaps(set, options.missing, {.remedy = "fetch or convert", .empty = MissingShards::Accepted});
  if (std::string strays = describe_left_out(set); !strays.empty())
    notices_.push_back(std::move(strays));
  auto opened = open_record_index(set, split, options.index);
  index_ = std::move(opened.index);
  std::ranges::move(opened.notices, std::back_inserter(notices_));
  drop_foreign_labels();
  const std::string count = describe_bad();
  judge_bad(options.max_bad_fraction, "the files contain no records: fetch or convert them again",
            count, fmt::format("{}: {}, and left out", folder_.string(), count));
  fingerprint_ = checksum([this](std::int64_t i) { return entry(i).label; });
}

// Labels are checked here and not in the index, because the valid range depends on the training's
// options.
void RecordSet::drop_foreign_labels() {
  const auto foreign = [this](const RecordEntry& entry) {
    const std::int64_t label = std::int64_t{entry.label} - label_offset_;
    return label < 0 || label >= classes_;
  };
  if (std::ranges::none_of(index_.entries, foreign)) return;
  const RecordIndex all = std::exchange(index_, {});
  index_.files = all.files;
  index_.bad = all.bad;
  index_.notices = all.notices;
  std::size_t i = 0;
  for (std::size_t file = 0; file < all.files.size(); ++file) {
    index_.files[file].first = index_.entries.size();
    const std::size_t end =
        file + 1 < all.files.size() ? all.files[file + 1].first : all.entries.size();
    for (; i < end; ++i) {
      const RecordEntry& entry = all.entries[i];
      if (!foreign(entry)) {
        index_.entries.push_back(entry);
        continue;
      }
      index_.bad.push_back({.file = static_cast<std::uint32_t>(file),
                            .record = all.record_of(i),
                            .offset = entry.offset,
                            .problem = fmt::format("label {} is not one of {} to {}", entry.label,
                                                   label_offset_, label_offset_ + classes_ - 1)});
    }
  }
  std::ranges::sort(index_.bad, {},
                    [](const BadRecord& bad) { return std::pair(bad.file, bad.offset); });
}

// "2 of 20 records are bad (`millrace data check` lists them)", with a hint about labels.
std::string RecordSet::describe_bad() const {
  const bool foreign = std::ranges::any_of(
      index_.bad, [](const BadRecord& bad) { return bad.problem.starts_with("label "); });
  return fmt::format(
      "{} of {} {} bad (`millrace data check` lists them{})", index_.bad.size(),
      counted(std::ssize(index_.bad) + std::ssize(index_.entries), "record"),
      is_or_are(std::ssize(index_.bad)),
      foreign ? fmt::format("; is {} the label of the first class (`label-offset`), and does the "
                            "network have an output for every class (`classes`)?",
                            label_offset_)
              : "");
}

StoredImage RecordSet::stored(std::int64_t index, ReadBuffer& buffer) const {
  const RecordEntry& at = entry(index);
  buffer.bytes.resize(at.bytes + kFrameBytes);
  const std::span<std::byte> frame(buffer.bytes);
  read_from(index, frame);
  const auto length = parse_frame_head(frame.first<kFrameHeadBytes>());
  if (!length || *length != at.bytes)
    fail(ErrorKind::Data,
         "{}: no record of {} bytes begins here: the file has changed since it was indexed",
         where(index), at.bytes);
  const std::span<const std::byte> rest = frame.subspan(kFrameHeadBytes);
  if (!payload_is_whole(rest)) fail(ErrorKind::Data, "{}: data checksum mismatch", where(index));
  Example example;
  const std::string problem = parse_example(rest.first(at.bytes), example, buffer);
  if (!problem.empty()) fail(ErrorKind::Data, "{}: {}", where(index), problem);
  if (example.label != at.label)
    fail(ErrorKind::Data, "{}: label {}, but {} when it was indexed: the file has changed since",
         where(index), example.label, at.label);
  return {.bytes = example.encoded, .boxes = buffer.boxes};
}

}  // namespace millrace::io
