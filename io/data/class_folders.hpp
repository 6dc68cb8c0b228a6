// SPDX-License-Identifier: Apache-2.0
//
// Images in one folder per class: the folders, sorted by name, are classes 0, 1, 2, ...
//
//   DIR/train/n01440764/*   DIR/val/n01440764/*       also img_train; validation, img_val
//   DIR/n01440764/*                                   training only
//
// Every folder there is a class, whatever it contains; images may lie in folders within it
// (n01440764/images/*). In DIR itself, folders named like splits ("val") and folders of whole data
// sets are not classes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/data/class_numbers.hpp"
#include "io/data/dataset.hpp"

namespace millrace::io {

/// Most levels of folders within a class.
inline constexpr int kMostFolderLevels = 8;

/// Class folders of one split, in label order.
struct ClassFolders {
  std::filesystem::path folder;
  std::vector<std::string> classes;
  bool number_them = true;  ///< whether they are the classes, or others were known before
};

/// The first place with class folders for a split; no classes if there is none. If `known` has no
/// names, the folders number the classes. Errors: Data if a folder is not a known class; Io.
[[nodiscard]] ClassFolders find_class_folders(const std::filesystem::path& directory, Split split,
                                              const KnownClasses& known = {});

/// Whether there is a place with class folders for a split.
[[nodiscard]] bool has_class_folders(const std::filesystem::path& directory, Split split);
/// Whether a folder of the split (not DIR itself) has class folders.
[[nodiscard]] bool has_class_folders_of(const std::filesystem::path& directory, Split split);

/// "DIR/train, DIR/img_train, DIR" for messages.
[[nodiscard]] std::string describe_class_places(const std::filesystem::path& directory,
                                                Split split);

}  // namespace millrace::io
