// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/files.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

using Names = std::span<const std::string_view>;

struct Naming {
  Names folders;  // "" is the directory itself
  Names prefixes;
};

constexpr auto kTrainRecordFolders =
    std::to_array<std::string_view>({"", "train", "img_train", "imagenet_train_subset"});
constexpr auto kTrainPrefixes =
    std::to_array<std::string_view>({"train-", "img_train-", "imagenet_train_subset"});
constexpr auto kValidationRecordFolders =
    std::to_array<std::string_view>({"", "validation", "val", "img_val", "imagenet_val_subset"});
constexpr auto kValidationPrefixes =
    std::to_array<std::string_view>({"validation-", "val-", "img_val-", "imagenet_val_subset"});

constexpr auto kArchiveTrainFolders = std::to_array<std::string_view>({"", "train", "img_train"});
constexpr auto kArchiveValidationFolders =
    std::to_array<std::string_view>({"", "val", "validation", "img_val"});
constexpr std::string_view kTar = ".tar";
constexpr std::string_view kOf = "-of-";
constexpr std::uint32_t kMostMissing = 1 << 20;

Naming naming_of(Split split) {
  return split == Split::Train ? Naming{kTrainRecordFolders, kTrainPrefixes}
                               : Naming{kValidationRecordFolders, kValidationPrefixes};
}

std::optional<std::uint32_t> parse_digits(std::string_view text) {
  constexpr std::size_t kMaxDigits = 6;
  return text.size() > kMaxDigits ? std::nullopt : parse_number<std::uint32_t>(text);
}

/// Files beside shards, and archives, which have a reader of their own.
bool is_helper_file(std::string_view name) {
  return name.ends_with(".idx") || name.ends_with(".index") || name.ends_with(kTar) ||
         name.find(".tmp.") != std::string_view::npos;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names = list_folder(folder).files;
  std::erase_if(names, is_helper_file);
  return names;
}

std::string shard_name(std::string_view like, const ShardNumber& shard, std::uint32_t number) {
  const std::string_view head = like.substr(0, shard.number_at);
  const std::string_view tail = like.substr(like.rfind(kOf));
  const std::size_t digits = like.size() - head.size() - tail.size();
  return fmt::format("{}{:0{}}{}", head, number, digits, tail);
}

/// The extension of numbered names that are shards and not copies (".bak"): none if present,
/// otherwise the most frequent one, then the shortest. Empty if no name has a number.
std::optional<std::string> ending_of_shards(const std::vector<std::string>& names) {
  std::map<std::string, std::size_t> counts;
  for (const std::string& name : names)
    if (const auto shard = parse_shard_number(name)) ++counts[name.substr(shard->ending_at)];
  if (counts.empty()) return {};
  const auto rank = [](const auto& ending) {
    const auto& [text, count] = ending;
    return std::tuple(!text.empty(), -static_cast<std::ptrdiff_t>(count), text.size());
  };
  return std::ranges::min_element(counts, {}, rank)->first;
}

/// Moves names without a number or with another extension to `left_out`, if others are numbered.
void leave_out_strays(RecordFileSet& set) {
  const std::optional<std::string> ending = ending_of_shards(set.files);
  if (!ending) return;
  const auto is_shard = [&](const std::string& name) {
    const auto shard = parse_shard_number(name);
    return shard && name.substr(shard->ending_at) == *ending;
  };
  const auto strays = std::stable_partition(set.files.begin(), set.files.end(), is_shard);
  set.left_out.assign(strays, set.files.end());
  set.files.erase(strays, set.files.end());
}

/// Sorts numbered shards by number, and lists the missing ones.
void complete(RecordFileSet& set) {
  std::map<std::uint32_t, std::string> by_number;
  std::optional<ShardNumber> first;
  leave_out_strays(set);
  for (const std::string& name : set.files) {
    const std::optional<ShardNumber> shard = parse_shard_number(name);
    if (!shard) return;  // not a numbered set: sorted by name
    if (!first) first = shard;
    if (shard->total != first->total || shard->number_at != first->number_at)
      fail(ErrorKind::Data,
           "{}: {} and {} belong to different sets of shards: keep one set per folder",
           set.folder.string(), set.files.front(), name);
    if (shard->number >= shard->total)
      fail(ErrorKind::Data, "{}: {} has a number beyond the number of shards in its name",
           set.folder.string(), name);
    const auto [place, is_new] = by_number.emplace(shard->number, name);
    if (!is_new)
      fail(ErrorKind::Data, "{}: {} and {} are the same shard", set.folder.string(), place->second,
           name);
  }
  const std::string like = set.files.front();
  set.files.clear();
  for (std::uint32_t number = 0; number < first->total; ++number) {
    const auto found = by_number.find(number);
    if (found != by_number.end())
      set.files.push_back(found->second);
    else
      set.missing.push_back(shard_name(like, *first, number));
  }
}

void find_empty(RecordFileSet& set) {
  for (const std::string& name : set.files)
    if (const auto stamp = stamp_of(set.folder / name); stamp && stamp->bytes == 0)
      set.empty.push_back(name);
}

std::string describe_shards(const RecordFileSet& set, const std::vector<std::string>& names,
                            std::string_view what) {
  if (names.empty()) return {};
  return fmt::format("{}: {} of {} shards {} {}: {}", set.folder.string(), names.size(),
                     set.missing.size() + set.files.size(), names.size() == 1 ? "is" : "are", what,
                     first_of(names));
}

/// Whether a file has the name of a shard: with a number, equal to the prefix
/// ("imagenet_train_subset"), or with a TFRecord extension, also of a compressed file, which is
/// then refused by its content.
bool has_shard_name(std::string_view name, std::string_view prefix) {
  if (name.ends_with(".gz")) name.remove_suffix(3);
  return parse_shard_number(name) || name == prefix || name.ends_with(".tfrecord") ||
         name.ends_with(".tfrecords");
}

/// Whether a file begins with the header of a record.
bool begins_with_record(const fs::path& path) {
  try {
    ByteWindow file(path);
    if (file.size() < kFrameBytes) return false;
    const auto head = file.at(0, kFrameHeadBytes);
    return parse_frame_head(std::span<const std::byte, kFrameHeadBytes>(head)).has_value();
  } catch (const Error&) {
    return false;
  }
}

/// Whether files with a prefix include shards, and not only "train-labels.txt".
bool holds_shards(const fs::path& folder, const std::vector<std::string>& names,
                  std::string_view prefix) {
  return std::ranges::any_of(
             names, [&](const std::string& name) { return has_shard_name(name, prefix); }) ||
         std::ranges::any_of(
             names, [&](const std::string& name) { return begins_with_record(folder / name); });
}

Names archive_folders(Split split) {
  return split == Split::Train ? Names(kArchiveTrainFolders) : Names(kArchiveValidationFolders);
}

std::string_view archive_word(Split split) { return split == Split::Train ? "train" : "val"; }

std::vector<std::string> inside_all(const fs::path& directory, Names folders) {
  std::vector<std::string> paths;
  for (const std::string_view inner : folders) paths.push_back(inside(directory, inner).string());
  return paths;
}

/// "imagenet-train-000017.tar" or "train-00017-of-01024.tar"
struct ArchiveName {
  std::string_view prefix;  ///< "imagenet-train-"
  std::uint32_t number = 0;
  std::size_t digits = 0;
  std::string_view suffix;  ///< ".tar" or "-of-01024.tar"
};

/// Empty for other names, such as "n01440764.tar": the number must begin the name or follow a
/// separator.
std::optional<ArchiveName> parse_name(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  if (!name.ends_with(kTar)) return {};
  std::size_t end = name.size() - kTar.size();
  if (const std::size_t of = name.rfind(kOf); of != std::string_view::npos) end = of;
  const std::string_view head = name.substr(0, end);
  const std::size_t last = head.find_last_not_of(kDigits);
  const std::size_t begin = last == std::string_view::npos ? 0 : last + 1;
  const std::string_view digits = head.substr(begin);
  const auto number = parse_number<std::uint32_t>(digits);
  if (!number || digits.size() > 9) return {};
  if (begin > 0 && head[begin - 1] != '-' && head[begin - 1] != '_' && head[begin - 1] != '.')
    return {};
  return ArchiveName{.prefix = name.substr(0, begin),
                     .number = *number,
                     .digits = digits.size(),
                     .suffix = name.substr(end)};
}

/// Sorts archives by number and lists missing ones: between the first and the last, and up to
/// "-of-N" if the names say it.
void complete_archives(RecordFileSet& set) {
  std::map<std::uint32_t, std::string> by_number;
  const std::string first_name = set.files.front();
  const ArchiveName first = *parse_name(first_name);
  for (const std::string& name : set.files) {
    const ArchiveName parsed = *parse_name(name);
    if (parsed.prefix != first.prefix || parsed.suffix != first.suffix)
      fail(ErrorKind::Data,
           "{}: {} and {} belong to different sets of archives: keep one set per "
           "folder",
           set.folder.string(), first_name, name);
    if (const auto [place, is_new] = by_number.emplace(parsed.number, name); !is_new)
      fail(ErrorKind::Data, "{}: {} and {} are the same archive", set.folder.string(),
           place->second, name);
  }
  std::uint32_t from = by_number.begin()->first;
  std::uint32_t until = by_number.rbegin()->first + 1;
  if (first.suffix.starts_with(kOf)) {
    const std::size_t digits = first.suffix.size() - kOf.size() - kTar.size();
    const auto total = parse_number<std::uint32_t>(first.suffix.substr(kOf.size(), digits));
    from = std::min(from, 1u);  // some count from 1
    if (total) until = std::max(until, *total + from);
  }
  if (until - from > kMostMissing)
    fail(ErrorKind::Data, "{}: the numbers of {} and {} are too far apart for a set of archives",
         set.folder.string(), by_number.begin()->second, by_number.rbegin()->second);
  set.files.clear();
  for (std::uint32_t number = from; number < until; ++number)
    if (const auto found = by_number.find(number); found != by_number.end())
      set.files.push_back(found->second);
    else
      set.missing.push_back(
          fmt::format("{}{:0{}}{}", first.prefix, number, first.digits, first.suffix));
}

/// Whether the name of an archive in a folder says that it belongs to a split. In a folder of the
/// split, every numbered archive does.
bool belongs(std::string_view name, Split split, bool in_its_folder) {
  const std::optional<ArchiveName> parsed = parse_name(name);
  if (!parsed) return false;
  const std::string prefix = to_lower(parsed->prefix);
  return in_its_folder || prefix.find(archive_word(split)) != std::string::npos;
}

}  // namespace

std::optional<ShardNumber> parse_shard_number(std::string_view name) {
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || of == 0) return {};
  const std::size_t dash = name.rfind('-', of - 1);
  const std::size_t begin = dash == std::string_view::npos ? 0 : dash + 1;
  const auto number = parse_digits(name.substr(begin, of - begin));
  const std::size_t total_at = of + kOf.size();
  const std::size_t ending_at =
      std::min(name.find_first_not_of("0123456789", total_at), name.size());
  const auto total = parse_digits(name.substr(total_at, ending_at - total_at));
  if (!number || !total) return {};
  return ShardNumber{
      .number = *number, .total = *total, .number_at = begin, .ending_at = ending_at};
}

RecordFileSet find_record_files(const fs::path& directory, Split split) {
  const Naming naming = naming_of(split);
  for (const std::string_view inner : naming.folders) {
    const fs::path folder = inside(directory, inner);
    const std::vector<std::string> names = files_in(folder);
    for (const std::string_view prefix : naming.prefixes) {
      RecordFileSet set{.folder = folder, .files = {}, .missing = {}, .empty = {}, .left_out = {}};
      std::ranges::copy_if(names, std::back_inserter(set.files),
                           [&](const std::string& name) { return name.starts_with(prefix); });
      if (!holds_shards(folder, set.files, prefix)) continue;
      complete(set);
      find_empty(set);
      return set;
    }
  }
  return {};
}

std::string describe_record_places(const fs::path& directory, Split split) {
  const Naming naming = naming_of(split);
  std::vector<std::string> names;
  for (const std::string_view prefix : naming.prefixes) names.push_back(fmt::format("{}*", prefix));
  return fmt::format("{} in {}", join(names, ", "),
                     join(inside_all(directory, naming.folders), ", "));
}

RecordFileSet find_archives(const fs::path& directory, Split split) {
  for (const std::string_view inner : archive_folders(split)) {
    RecordFileSet set{.folder = inside(directory, inner),
                      .files = {},
                      .missing = {},
                      .empty = {},
                      .left_out = {}};
    for (std::string& name : list_folder(set.folder).files)
      if (belongs(name, split, !inner.empty())) set.files.push_back(std::move(name));
    if (set.files.empty()) continue;
    complete_archives(set);
    find_empty(set);
    return set;
  }
  return {};
}

std::string describe_archive_places(const fs::path& directory, Split split) {
  return fmt::format("{}-*.tar in {}", archive_word(split),
                     join(inside_all(directory, archive_folders(split)), ", "));
}

std::string describe_missing(const RecordFileSet& set) {
  return describe_shards(set, set.missing, "missing");
}

std::string describe_empty(const RecordFileSet& set) {
  return describe_shards(set, set.empty, "empty");
}

std::string describe_left_out(const RecordFileSet& set) {
  if (set.left_out.empty()) return {};
  const bool one = set.left_out.size() == 1;
  return fmt::format("{}: {} of another form {} beside numbered shards and {} left out: {}",
                     set.folder.string(),
                     one ? "1 file" : fmt::format("{} files", set.left_out.size()),
                     one ? "lies" : "lie", one ? "is" : "are", first_of(set.left_out));
}

}  // namespace millrace::io
