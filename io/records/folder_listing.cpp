// SPDX-License-Identifier: Apache-2.0
#include "io/records/folder_listing.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.hpp"

namespace millrace::io {

FolderListing list_folder(const std::filesystem::path& folder) {
  FolderListing listing;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    if (entry->is_directory(ignored))
      listing.folders.push_back(std::move(name));
    else if (entry->is_regular_file(ignored))
      listing.files.push_back(std::move(name));
    else
      listing.others.push_back(std::move(name));
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail(ErrorKind::Io, "{}: cannot be listed ({}): check its permissions", folder.string(),
         error.message());
  std::ranges::sort(listing.files);
  std::ranges::sort(listing.folders);
  std::ranges::sort(listing.others);
  return listing;
}

}  // namespace millrace::io
