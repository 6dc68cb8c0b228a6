// SPDX-License-Identifier: Apache-2.0
//
// Classifies files and folders for the search for images.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/image_format.hpp"
#include "io/records/file_stamp.hpp"

namespace millrace::io {

/// Stamp and format of a file. The format comes from its first bytes.
struct FileLook {
  FileStamp stamp;
  ImageFormat format = ImageFormat::Other;
};

/// Inspects a regular file. Errors: Io.
[[nodiscard]] FileLook look_at_file(const std::filesystem::path& path);

/// Whether a name has the extension of an image: .jpg, .jpeg, .png in any case.
[[nodiscard]] bool has_picture_name(std::string_view name);

/// Whether a folder has the name of a split ("train", "img_val", "test"). Beside class folders,
/// such a folder is not a class.
[[nodiscard]] bool has_split_name(std::string_view name) noexcept;
/// "train, img_train, ..." for messages.
[[nodiscard]] std::string split_folder_names();

}  // namespace millrace::io
