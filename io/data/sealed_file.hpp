// SPDX-License-Identifier: Apache-2.0
//
// Files that can be rebuilt from others, such as indices. They are stored beside the data, or in
// the user's cache if the data's folder is not writable. A sealed file is
//
//   8 bytes  magic     4 bytes  version     8 bytes  length of the content
//   content            4 bytes  CRC-32C of all before
//
// A sealed file that is damaged, of another version or about other files is ignored and rebuilt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/data/parallel.hpp"

namespace millrace::io {

/// Type of a sealed file: eight letters and a version of its content.
struct Seal {
  std::string_view magic;
  std::uint32_t version = 1;
};

/// The sealed file of `content`.
[[nodiscard]] std::vector<std::byte> seal(const Seal& seal, std::span<const std::byte> content);

/// The content of a sealed file (a view into `file`); empty if the file is invalid.
[[nodiscard]] std::optional<std::span<const std::byte>> unseal(const Seal& seal,
                                                               std::span<const std::byte> file);

/// Possible paths of a file `name` about `folder`: first in the folder itself, then in the cache
/// under a name with a hash of the folder's full path. An empty `cache_folder` is skipped.
[[nodiscard]] std::vector<std::filesystem::path> cache_places(
    const std::filesystem::path& folder, const std::filesystem::path& cache_folder,
    std::string_view name);

/// The bytes of a cached file; empty if it cannot be read.
[[nodiscard]] std::optional<std::vector<std::byte>> read_cached(const std::filesystem::path& path);

/// Writes the file atomically to the first writable one of `places`. Returns the place, or the
/// problem if none is writable.
struct Written {
  std::filesystem::path place;
  std::string problem;
};
[[nodiscard]] Written write_cached(std::span<const std::filesystem::path> places,
                                   std::span<const std::byte> file);

/// Lets only one process per machine at a time build the files about a folder; the others wait and
/// then find them. After two seconds of waiting `tell` is called once. Never fails: if the file
/// system has no locks, the work is done twice.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder, const TellCallback& tell = {});

 private:
  [[nodiscard]] bool soon() const noexcept;

  UniqueFd directory_;
};

}  // namespace millrace::io
