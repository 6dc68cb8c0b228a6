// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/archive_index.hpp"
#include "io/data/files.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Names = std::span<const std::string_view>;

constexpr std::string_view kTar = ".tar";
constexpr std::uint32_t kMostMissing = 1 << 20;
constexpr auto kTrainFolders = std::to_array<std::string_view>({"", "train", "img_train"});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"", "val", "validation", "img_val"});

Names folders_of(Split split) {
  return split == Split::Train ? Names(kTrainFolders) : Names(kValidationFolders);
}

std::string_view word_of(Split split) { return split == Split::Train ? "train" : "val"; }

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
  if (const std::size_t of = name.rfind("-of-"); of != std::string_view::npos) end = of;
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
void complete(RecordFileSet& set) {
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
  constexpr std::string_view kOf = "-of-";
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
  return in_its_folder || prefix.find(word_of(split)) != std::string::npos;
}

}  // namespace

RecordFileSet find_archives(const fs::path& directory, Split split) {
  for (const std::string_view inner : folders_of(split)) {
    const fs::path folder = inner.empty() ? directory : directory / inner;
    RecordFileSet set{.folder = folder, .files = {}, .missing = {}, .empty = {}, .left_out = {}};
    for (std::string& name : list_folder(folder).files)
      if (belongs(name, split, !inner.empty())) set.files.push_back(std::move(name));
    if (set.files.empty()) continue;
    complete(set);
    for (const std::string& name : set.files)
      if (const auto stamp = stamp_of(folder / name); stamp && stamp->bytes == 0)
        set.empty.push_back(name);
    return set;
  }
  return {};
}

std::string describe_archive_places(const fs::path& directory, Split split) {
  std::vector<std::string> folders;
  for (const std::string_view inner : folders_of(split))
    folders.push_back((inner.empty() ? directory : directory / inner).string());
  return fmt::format("{}-*.tar in {}", word_of(split), join(folders, ", "));
}

}  // namespace millrace::io
