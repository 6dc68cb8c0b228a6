// SPDX-License-Identifier: Apache-2.0
#include "io/data/record_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/byte_window.hpp"
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

constexpr auto kTrainFolders =
    std::to_array<std::string_view>({"", "train", "img_train", "imagenet_train_subset"});
constexpr auto kTrainPrefixes =
    std::to_array<std::string_view>({"train-", "img_train-", "imagenet_train_subset"});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"", "validation", "val", "img_val", "imagenet_val_subset"});
constexpr auto kValidationPrefixes =
    std::to_array<std::string_view>({"validation-", "val-", "img_val-", "imagenet_val_subset"});

constexpr std::size_t kListed = 5;  // names in a message

Naming naming_of(Split split) {
  return split == Split::Train ? Naming{kTrainFolders, kTrainPrefixes}
                               : Naming{kValidationFolders, kValidationPrefixes};
}

std::optional<std::uint32_t> parse_digits(std::string_view text) {
  constexpr std::size_t kMaxDigits = 6;
  std::uint32_t value = 0;
  if (text.empty() || text.size() > kMaxDigits) return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

/// Files beside shards, and archives, which have a reader of their own.
bool is_helper_file(std::string_view name) {
  return name.ends_with(".idx") || name.ends_with(".index") || name.ends_with(".tar") ||
         name.find(".tmp.") != std::string_view::npos;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names = list_folder(folder).files;
  std::erase_if(names, is_helper_file);
  return names;
}

std::string shard_name(std::string_view like, const ShardNumber& shard, std::uint32_t number) {
  const std::string_view head = like.substr(0, shard.number_at);
  const std::string_view tail = like.substr(like.rfind("-of-"));
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

/// "a, b, c, d, e, ..."
std::string first_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kListed);
  return printable(fmt::format("{}{}", join(std::span(names).first(shown), ", "),
                               shown < names.size() ? ", ..." : ""));
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

}  // namespace

std::optional<ShardNumber> parse_shard_number(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
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
    const fs::path folder = inner.empty() ? directory : directory / inner;
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
  std::vector<std::string> folders = {directory.string()};
  for (const std::string_view inner : naming.folders)
    if (!inner.empty()) folders.push_back((directory / inner).string());
  return fmt::format("{} in {}", join(names, ", "), join(folders, ", "));
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
