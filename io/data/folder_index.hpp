// SPDX-License-Identifier: Apache-2.0
//
// Indices of images that are files of their own, in class folders or listed by an annotation file.
// They are kept in the user's cache until a folder, the list or an image changes, never among the
// images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/class_folders.hpp"
#include "io/data/files.hpp"
#include "io/data/index_cache.hpp"

namespace millrace::io {

/// One image file: its class, its size and modification time, its name in the folder of its class,
/// or, if an annotation file lists it, in the folder of that file.
struct ImageFile {
  std::int32_t label = 0;  ///< position among the classes of the index
  FileStamp stamp;
  std::string name;
  friend bool operator==(const ImageFile&, const ImageFile&) = default;
};

/// The stamp of a missing file in an index.
inline constexpr FileStamp kNoFile = {.bytes = 0, .modified_ns = -1};

/// A class as its source calls it, and the line of the annotation file that names it first.
struct IndexedClass {
  std::string name;
  std::uint64_t line = 0;
  friend bool operator==(const IndexedClass&, const IndexedClass&) = default;
};

/// A folder or file that an index was made from, with its modification time (-1: missing).
struct IndexSourceFile {
  std::string name;
  std::int64_t modified_ns = 0;
  friend bool operator==(const IndexSourceFile&, const IndexSourceFile&) = default;
};

/// Images; bad files, which should be images but are missing, empty, not regular files, too large,
/// or neither JPEG nor PNG despite an image's name; and other files in class folders. Those of
/// class folders are sorted by class, folder and name; listed ones have the order of the list.
struct FolderIndex {
  std::vector<IndexedClass> classes;
  std::vector<IndexSourceFile> sources;
  std::vector<ImageFile> images;
  std::vector<ImageFile> bad;
  std::vector<ImageFile> others;
  friend bool operator==(const FolderIndex&, const FolderIndex&) = default;
};

/// Converts an index to the content of a cached file and back; empty if the bytes are not an index.
[[nodiscard]] std::vector<std::byte> write_folder_index(const FolderIndex& index);
[[nodiscard]] std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content);

/// The problem of a file that should be an image.
[[nodiscard]] std::string problem_of(const ImageFile& file);

/// The index of class folders: the cached one if it is current, otherwise a new one. Errors: Data
/// for folders within a class that are too deep; Io.
[[nodiscard]] FolderIndex index_class_folders(const ClassFolders& folders, Split split,
                                              const IndexOptions& options,
                                              std::vector<std::string>& notices);

/// The same for the images that an annotation file lists. Their paths begin at the folder of the
/// file, at `directory`, or in an "images" folder or one of a split there: the first of these that
/// has the first image. Errors: Data as parse_annotations, if the first image is nowhere, or if two
/// lines give an image different classes; Io.
[[nodiscard]] FolderIndex index_annotated(const std::filesystem::path& annotations,
                                          const std::filesystem::path& directory, Split split,
                                          const IndexOptions& options,
                                          std::vector<std::string>& notices);

}  // namespace millrace::io
