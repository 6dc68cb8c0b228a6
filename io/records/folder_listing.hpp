// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace millrace::io {

/// Names in a folder, sorted; hidden ones (".*") left out.
struct FolderListing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::vector<std::string> others;  ///< links that lead nowhere, pipes, devices
};

/// Empty where there is no such folder. Errors: Io.
[[nodiscard]] FolderListing list_folder(const std::filesystem::path& folder);

}  // namespace millrace::io
