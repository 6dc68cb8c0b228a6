// SPDX-License-Identifier: Apache-2.0
//
// What a file or folder is, for those who look for pictures among them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/image_format.hpp"
#include "io/records/file_stamp.hpp"

namespace millrace::io {

/// A file as its first bytes and the file system describe it.
struct FileLook {
  FileStamp stamp;
  ImageFormat format = ImageFormat::Other;
};

/// Looks at a regular file. Errors: Io.
[[nodiscard]] FileLook look_at_file(const std::filesystem::path& path);

/// Whether a name ends as those of pictures do: .jpg, .jpeg, .png, in capitals or not.
[[nodiscard]] bool has_picture_name(std::string_view name);

/// Whether a folder is called as one of a split is ("train", "img_val", "test"), and so is no class
/// where it lies beside classes.
[[nodiscard]] bool has_split_name(std::string_view name) noexcept;
/// "train, img_train, ..." for messages.
[[nodiscard]] std::string split_folder_names();

}  // namespace millrace::io
