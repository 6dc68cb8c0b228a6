// SPDX-License-Identifier: Apache-2.0
#include "io/data/archive_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/image_format.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "io/data/files.hpp"
#include "io/data/little_endian.hpp"
#include "io/data/record_frame.hpp"
#include "io/data/tar_reader.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr IndexFormat<ArchiveIndex> kFormat = {
    .kind = {.magic = "MLRTARIX", .version = 2, .extension = ".archives"},
    .write = write_archive_index,
    .parse = parse_archive_index};
constexpr std::uint64_t kMostClassBytes = 1024;
constexpr std::uint64_t kMostJsonBytes = std::uint64_t{1} << 20;
constexpr std::size_t kSmallestText = 4 + 4;
constexpr auto kLabelKeys =
    std::to_array<std::string_view>({"label", "cls", "class", "class_id", "target"});

/// The members of one sample.
struct ArchivedSample {
  std::string key;
  std::optional<TarMember> image;
  std::optional<TarMember> label;  ///< .cls
  std::optional<TarMember> json;
  std::size_t images = 0;
};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Whether what follows the key is this extension: "cls", or "left.cls".
bool is_a(std::string_view extensions, std::string_view wanted) {
  return extensions == wanted ||
         (extensions.size() > wanted.size() && extensions.ends_with(wanted) &&
          extensions[extensions.size() - wanted.size() - 1] == '.');
}

void put(const TarMember& member, std::string_view extensions, ArchivedSample& sample) {
  const std::string kind = to_lower(extensions);
  if (has_image_name(member.name)) {
    if (!sample.image) sample.image = member;
    ++sample.images;
  } else if (is_a(kind, "cls")) {
    sample.label = member;
  } else if (is_a(kind, "json")) {
    sample.json = member;
  }
}

/// Consecutive members with equal keys.
std::vector<ArchivedSample> samples_in(const std::vector<TarMember>& members) {
  std::vector<ArchivedSample> samples;
  for (const TarMember& member : members) {
    if (member.name.starts_with('.')) continue;
    const std::size_t dot = std::min(member.name.find('.'), member.name.size());
    std::string key = member.folder + member.name.substr(0, dot);
    if (samples.empty() || samples.back().key != key) samples.emplace_back().key = std::move(key);
    if (dot < member.name.size())
      put(member, std::string_view(member.name).substr(dot + 1), samples.back());
  }
  return samples;
}

/// The class in a JSON file; empty, with the problem, if there is none.
std::string label_of_json(std::string_view text, std::string& problem) {
  const std::optional<Json> json = Json::try_parse(text);
  if (!json || !json->is_object()) {
    problem = "its .json is not a JSON object";
    return {};
  }
  for (const std::string_view key : kLabelKeys) {
    const Json* const value = json->find(key);
    if (value == nullptr) continue;
    if (value->is_text()) return value->text();
    if (value->is_integer()) return value->dump(-1);
  }
  problem = fmt::format("its .json has no class: expected a number or a name under {}",
                        join(kLabelKeys, ", "));
  return {};
}

/// The class of a sample as written; empty, with the problem, if there is none.
std::string label_of(const ArchivedSample& sample, ByteWindow& file, std::string& problem) {
  const TarMember* const member = sample.label  ? &*sample.label
                                  : sample.json ? &*sample.json
                                                : nullptr;
  if (member == nullptr) {
    problem = "no .cls and no .json beside the image";
    return {};
  }
  const std::uint64_t most = sample.label ? kMostClassBytes : kMostJsonBytes;
  if (member->bytes > most) {
    problem = fmt::format("{} has {} bytes; the limit is {}", member->name, member->bytes, most);
    return {};
  }
  const std::string_view text =
      as_text(file.at(member->offset, static_cast<std::size_t>(member->bytes)));
  if (!sample.label) return label_of_json(text, problem);
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  std::string label(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
  if (label.empty()) problem = "its .cls is empty";
  return label;
}

/// What makes a sample unusable, or "". `end` is that of the image before it.
std::string problem_of(const ArchivedSample& sample, std::uint64_t end) {
  if (!sample.image) return fmt::format("no image ({}) beside its .cls", image_endings());
  if (sample.images > 1) return fmt::format("{} images with the same name", sample.images);
  if (sample.image->offset < end) return "its image is a link to an earlier one";
  if (sample.image->bytes == 0 || sample.image->bytes > kMaxRecordBytes)
    return fmt::format("an image of {} bytes; the limit is {}", sample.image->bytes,
                       kMaxRecordBytes);
  return {};
}

/// Adds the samples of archive `file` to the index of all.
void append(ArchiveIndex& index, std::map<std::string, std::int32_t>& numbers, std::size_t file,
            ArchiveSamples&& part) {
  std::vector<std::int32_t> number_of(part.texts.size());
  for (std::size_t i = 0; i < part.texts.size(); ++i) {
    const auto [place, is_new] =
        numbers.emplace(part.texts[i], static_cast<std::int32_t>(index.texts.size()));
    number_of[i] = place->second;
    if (!is_new) continue;
    index.texts.push_back(std::move(part.texts[i]));
    index.places.push_back(
        fmt::format("{}, sample '{}'", index.records.files[file].name, printable(part.keys[i])));
  }
  for (RecordEntry& entry : part.samples.entries)
    entry.label = number_of[static_cast<std::size_t>(entry.label)];
  index.records.append(file, std::move(part.samples));
}

ArchiveIndex make_index(const fs::path& folder, std::span<const IndexedFile> files,
                        const IndexOptions& options) {
  std::vector<ArchiveSamples> parts = scan_files(folder, files, options, [](const fs::path& path) {
    ByteWindow file(path);
    return scan_archive(file);
  });
  ArchiveIndex index;
  index.records.files.assign(files.begin(), files.end());
  std::map<std::string, std::int32_t> numbers;
  for (std::size_t i = 0; i < parts.size(); ++i)
    append(index, numbers, i, std::exchange(parts[i], {}));
  if (std::ssize(index.texts) > kMostClasses)
    fail(ErrorKind::Data, "{}: {} different classes exceed the limit of {}", folder.string(),
         index.texts.size(), kMostClasses);
  return index;
}

}  // namespace

ArchiveSamples scan_archive(ByteWindow& file) {
  ArchiveSamples found;
  std::map<std::string, std::int32_t> numbers;
  std::uint64_t end = 0;
  std::uint64_t number = 0;
  const TarListing listing = list_tar(file);
  for (const ArchivedSample& sample : samples_in(listing.members)) {
    if (!sample.image && !sample.label) continue;  // notes
    if (found.samples.bad.size() == kMostBadOfFile) break;
    std::string problem = problem_of(sample, end);
    std::string label = problem.empty() ? label_of(sample, file, problem) : "";
    const TarMember& member = sample.image ? *sample.image : *sample.label;
    if (!problem.empty()) {
      found.samples.bad.push_back(
          {.file = 0,
           .record = number++,
           .offset = member.offset,
           .problem = fmt::format("'{}': {}", printable(sample.key), problem)});
      continue;
    }
    ++number;
    end = member.offset + member.bytes;
    const auto [place, is_new] =
        numbers.emplace(label, static_cast<std::int32_t>(found.texts.size()));
    found.samples.entries.push_back({.offset = member.offset,
                                     .bytes = static_cast<std::uint32_t>(member.bytes),
                                     .label = place->second});
    if (!is_new) continue;
    found.texts.push_back(std::move(label));
    found.keys.push_back(sample.key);
  }
  return found;
}

std::vector<std::byte> write_archive_index(const ArchiveIndex& index) {
  const std::vector<std::byte> records = write_index(index.records);
  ByteWriter out;
  out.bytes().reserve(records.size() + 64 * (index.texts.size() + 1));
  out(index.texts.size(), records.size());
  out.put_bytes(records);
  for (std::size_t i = 0; i < index.texts.size(); ++i) out(index.texts[i], index.places[i]);
  return std::move(out.bytes());
}

std::optional<ArchiveIndex> parse_archive_index(std::span<const std::byte> content) {
  ByteReader in(content);
  std::uint64_t texts = 0;
  std::uint64_t bytes = 0;
  in(texts, bytes);
  auto records = parse_index(in.get_bytes(bytes));
  if (!records || !in.ok() || texts > in.left() / kSmallestText) return {};
  ArchiveIndex index{.records = std::move(*records), .texts = {}, .places = {}};
  index.texts.resize(texts);
  index.places.resize(texts);
  for (std::size_t i = 0; i < texts; ++i) in(index.texts[i], index.places[i]);
  const bool numbered = std::ranges::all_of(index.records.entries, [&](const RecordEntry& entry) {
    return entry.label >= 0 && static_cast<std::uint64_t>(entry.label) < texts;
  });
  if (!in.ok() || in.left() != 0 || !numbered) return {};
  return index;
}

ArchiveSet::ArchiveSet(const RecordFileSet& set, Split split, const KnownClasses& known,
                       const OpenOptions& options, const fs::path& words)
    : ShardSet(set) {
  note_gaps(set, options.missing, {.remedy = "fetch"});
  const std::vector<IndexedFile> files = look_at_all(set);
  auto opened = open_index(
      kFormat, set.folder, split, options.index,
      [&](const ArchiveIndex& cached) { return same_files(cached.records.files, files); },
      [&] { return make_index(set.folder, files, options.index); });
  std::ranges::move(opened.notices, std::back_inserter(notices_));
  const ArchiveIndex& index = opened.index;
  index_ = std::move(opened.index.records);
  const std::string count =
      fmt::format("{}: {} of {} samples are bad (`millrace data check` lists them)",
                  folder_.string(), index_.bad.size(), index_.bad.size() + index_.entries.size());
  judge_bad(options.max_bad_fraction,
            "the archives hold no images: expected files like 0001.jpg and 0001.cls", count,
            count + ", and are left out");
  const auto place_of = [&](std::size_t i) { return (folder_ / index.places[i]).string(); };
  NumberedClasses numbered = number_classes({.texts = index.texts, .place_of = place_of}, known);
  numbers_ = std::move(numbered.numbers);
  known_ = std::move(numbered.known);
  titles_ = with_words(known_.names, words);
  fingerprint_ = checksum([this](std::int64_t i) { return label(i); });
}

StoredImage ArchiveSet::stored(std::int64_t index, ReadBuffer& buffer) const {
  buffer.bytes.resize(entry(index).bytes);
  read_from(index, buffer.bytes);
  if (format_of(buffer.bytes) == ImageFormat::Other)
    fail(ErrorKind::Data, "{}: neither a JPEG nor a PNG: damaged, or changed since it was indexed",
         where(index));
  return {.bytes = buffer.bytes};
}

}  // namespace millrace::io
