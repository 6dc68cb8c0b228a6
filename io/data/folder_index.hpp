// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/data/files.hpp"

namespace millrace::io {

/// One file in a class folder: its class, its size and modification time, its name in the folder.
struct ImageFile {
  std::int32_t label = 0;
  FileStamp stamp;
  std::string name;
  friend bool operator==(const ImageFile&, const ImageFile&) = default;
};

/// Content of class folders, by class and name: images; bad files, which should be images but are
/// empty, not regular files, too large, or neither JPEG nor PNG despite an image's name; and other
/// files. `modified_ns` are the modification times of the class folders (-1: missing).
struct FolderIndex {
  std::vector<std::string> classes;
  std::vector<std::int64_t> modified_ns;
  std::vector<ImageFile> images;
  std::vector<ImageFile> bad;
  std::vector<ImageFile> others;
  friend bool operator==(const FolderIndex&, const FolderIndex&) = default;
};

/// Converts an index to the content of a sealed file and back; empty if the bytes are not an index.
[[nodiscard]] std::vector<std::byte> write_folder_index(const FolderIndex& index);
[[nodiscard]] std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content);

}  // namespace millrace::io
