// SPDX-License-Identifier: Apache-2.0
#include "io/data/class_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/data/files.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;
using Names = std::span<const std::string_view>;

constexpr auto kTrainFolders = std::to_array<std::string_view>({"train", "img_train", ""});
constexpr auto kValidationFolders =
    std::to_array<std::string_view>({"val", "validation", "img_val"});
/// Levels of folders in which a file is searched for: "n01440764/images/a.JPEG".
constexpr int kLevelsLookedAt = 2;

Names folders_of(Split split) {
  return split == Split::Train ? Names(kTrainFolders) : Names(kValidationFolders);
}

fs::path inside(const fs::path& directory, std::string_view name) {
  return name.empty() ? directory : directory / name;
}

/// Reads only up to the first file, so it is fast.
bool holds_a_file(const fs::path& folder, int levels) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_regular_file(ignored)) return true;
    if (levels > 1 && entry.is_directory(ignored) && holds_a_file(entry.path(), levels - 1))
      return true;
  }
  return false;
}

/// Whether a folder is a whole data set, with folders of splits.
bool holds_splits(const fs::path& folder) {
  return std::ranges::any_of(list_folder(folder).folders, has_split_name);
}

/// The folders in the place `name` of a directory that may be classes.
std::vector<std::string> folders_in(const fs::path& directory, std::string_view name) {
  const fs::path folder = inside(directory, name);
  std::vector<std::string> folders = list_folder(folder).folders;
  if (name.empty())
    std::erase_if(folders, [&](const std::string& inner) {
      return has_split_name(inner) || holds_splits(folder / inner);
    });
  return folders;
}

bool holds_classes(const fs::path& directory, std::string_view name) {
  return std::ranges::any_of(folders_in(directory, name), [&](const std::string& inner) {
    return holds_a_file(inside(directory, name) / inner, kLevelsLookedAt);
  });
}

}  // namespace

ClassFolders find_class_folders(const fs::path& directory, Split split, const KnownClasses& known) {
  for (const std::string_view name : folders_of(split)) {
    if (!holds_classes(directory, name)) continue;
    ClassFolders found{.folder = inside(directory, name), .classes = folders_in(directory, name)};
    if (known.names.empty()) return found;
    for (const std::string& own : found.classes)
      if (std::ranges::find(known.names, own) == known.names.end())
        fail(ErrorKind::Data,
             "{}: class {} has {} images, but is not one of the {} {}, so it has no number",
             found.folder.string(), printable(own), split_name(split), known.names.size(),
             known.source);
    found.classes = known.names;
    found.number_them = false;
    return found;
  }
  return {};
}

bool has_class_folders(const fs::path& directory, Split split) {
  return std::ranges::any_of(folders_of(split),
                             [&](std::string_view name) { return holds_classes(directory, name); });
}

bool has_class_folders_of(const fs::path& directory, Split split) {
  return std::ranges::any_of(folders_of(split), [&](std::string_view name) {
    return !name.empty() && holds_classes(directory, name);
  });
}

std::string describe_class_places(const fs::path& directory, Split split) {
  std::vector<std::string> places;
  for (const std::string_view name : folders_of(split))
    places.push_back(inside(directory, name).string());
  return fmt::format("{}{}", join(places, ", "),
                     split == Split::Train
                         ? fmt::format(" ({} are not classes there)", split_folder_names())
                         : "");
}

}  // namespace millrace::io
