// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace millrace::io {

/// Sorted names in a folder, without hidden ones (".*").
struct FolderListing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::vector<std::string> others;  ///< broken links, pipes, devices
};

/// Empty if the folder does not exist. Errors: Io.
[[nodiscard]] FolderListing list_folder(const std::filesystem::path& folder);

}  // namespace millrace::io
