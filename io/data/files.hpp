// SPDX-License-Identifier: Apache-2.0
//
// What lies on disk: stamps of files, contents of folders, and which files and folders may hold
// images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/image_format.hpp"

namespace millrace::io {

/// Size and modification time, to detect that a file has changed. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// The stamp of a file or folder; empty, with the reason in errno, on failure.
[[nodiscard]] std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept;

/// The modification time, or -1 if the file does not exist.
[[nodiscard]] std::int64_t modified_ns(const std::filesystem::path& path) noexcept;

/// Sorted names in a folder, without hidden ones (".*").
struct FolderListing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::vector<std::string> others;  ///< broken links, pipes, devices
};

/// Empty if the folder does not exist. Errors: Io.
[[nodiscard]] FolderListing list_folder(const std::filesystem::path& folder);

/// Stamp and format of a file. The format comes from its first bytes.
struct FileLook {
  FileStamp stamp;
  ImageFormat format = ImageFormat::Other;
};

/// Inspects a regular file. Errors: Io.
[[nodiscard]] FileLook look_at_file(const std::filesystem::path& path);

/// Whether a name has the extension of an image, in any case.
[[nodiscard]] bool has_image_name(std::string_view name);
/// ".jpg, .jpeg, .jpe, .jfif, .png" for messages.
[[nodiscard]] std::string image_endings();

/// Whether a folder has the name of a split ("train", "img_val", "test"). Beside class folders,
/// such a folder is not a class.
[[nodiscard]] bool has_split_name(std::string_view name) noexcept;
/// "train, img_train, ..." for messages.
[[nodiscard]] std::string split_folder_names();

}  // namespace millrace::io
