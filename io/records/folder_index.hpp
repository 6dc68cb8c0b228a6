// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/records/file_stamp.hpp"

namespace millrace::io {

/// One file in a class folder: its class, its size and time of change, its name in the folder.
struct PictureFile {
  std::int32_t label = 0;
  FileStamp stamp;
  std::string name;
  friend bool operator==(const PictureFile&, const PictureFile&) = default;
};

/// What lies in class folders, by class and name: pictures; files that should be pictures, but are
/// empty, no regular files, too large, or neither JPEG nor PNG under a name that says so; and
/// others, which nobody would miss. `modified_ns` are the times of change of the class folders (-1:
/// not there).
struct FolderIndex {
  std::vector<std::string> classes;
  std::vector<std::int64_t> modified_ns;
  std::vector<PictureFile> pictures;
  std::vector<PictureFile> bad;
  std::vector<PictureFile> others;
  friend bool operator==(const FolderIndex&, const FolderIndex&) = default;
};

/// An index as the content of a sealed file and back; nothing when the bytes are none.
[[nodiscard]] std::vector<std::byte> write_folder_index(const FolderIndex& index);
[[nodiscard]] std::optional<FolderIndex> parse_folder_index(std::span<const std::byte> content);

}  // namespace millrace::io
