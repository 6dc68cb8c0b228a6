// SPDX-License-Identifier: Apache-2.0
#include "io/records/record_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "core/error.hpp"
#include "io/records/folder_listing.hpp"

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

/// "-00017-of-01024" at the end of a name.
struct ShardNumber {
  std::uint32_t number = 0;
  std::uint32_t total = 0;
  std::size_t number_at = 0;  ///< where the digits begin
};

std::optional<std::uint32_t> parse_digits(std::string_view text) {
  constexpr std::size_t kMaxDigits = 6;
  std::uint32_t value = 0;
  if (text.empty() || text.size() > kMaxDigits) return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::optional<ShardNumber> parse_shard_number(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || of == 0) return {};
  const std::size_t dash = name.rfind('-', of - 1);
  const std::size_t begin = dash == std::string_view::npos ? 0 : dash + 1;
  const auto number = parse_digits(name.substr(begin, of - begin));
  const auto total = parse_digits(name.substr(of + kOf.size()));
  if (!number || !total) return {};
  return ShardNumber{.number = *number, .total = *total, .number_at = begin};
}

bool is_helper_file(std::string_view name) {
  return name.ends_with(".idx") || name.ends_with(".index") ||
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

/// Orders numbered shards by number, and names those of their set that are missing.
void complete(RecordFileSet& set) {
  std::map<std::uint32_t, std::string> by_number;
  std::optional<ShardNumber> first;
  for (const std::string& name : set.files) {
    const std::optional<ShardNumber> shard = parse_shard_number(name);
    if (!shard) return;  // not a numbered set: the order of names
    if (!first) first = shard;
    if (shard->total != first->total || shard->number_at != first->number_at)
      fail(ErrorKind::Data,
           "{}: {} and {} belong to different sets of shards: keep one set in a folder",
           set.folder.string(), set.files.front(), name);
    if (shard->number >= shard->total)
      fail(ErrorKind::Data, "{}: {} has a number beyond its own count of shards",
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

}  // namespace

RecordFileSet find_record_files(const fs::path& directory, Split split) {
  const Naming naming = naming_of(split);
  for (const std::string_view inner : naming.folders) {
    RecordFileSet set{
        .folder = inner.empty() ? directory : directory / inner, .files = {}, .missing = {}};
    const std::vector<std::string> names = files_in(set.folder);
    for (const std::string_view prefix : naming.prefixes) {
      std::ranges::copy_if(names, std::back_inserter(set.files),
                           [&](const std::string& name) { return name.starts_with(prefix); });
      if (set.files.empty()) continue;
      complete(set);
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
  return fmt::format("{} in {}", fmt::join(names, ", "), fmt::join(folders, ", "));
}

std::string describe_missing(const RecordFileSet& set) {
  if (set.missing.empty()) return {};
  const std::size_t shown = std::min(set.missing.size(), kListed);
  return fmt::format("{}: {} of {} shards {} missing: {}{}", set.folder.string(),
                     set.missing.size(), set.missing.size() + set.files.size(),
                     set.missing.size() == 1 ? "is" : "are",
                     fmt::join(set.missing.begin(),
                               set.missing.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < set.missing.size() ? ", ..." : "");
}

}  // namespace millrace::io
