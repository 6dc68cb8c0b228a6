// SPDX-License-Identifier: Apache-2.0
//
// Files that can be made again from others, such as indices: kept beside the data, or in the user's
// cache where that cannot be written. A sealed file is
//
//   8 bytes  magic     4 bytes  version     8 bytes  length of the content
//   content            4 bytes  CRC-32C of all before
//
// One that is cut, torn, of another version or about other files is as good as none: it is made
// anew.
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
#include "io/records/encoded_source.hpp"

namespace millrace::io {

/// What a sealed file is: eight letters and a version of its content.
struct Seal {
  std::string_view magic;
  std::uint32_t version = 1;
};

/// The file around `content`.
[[nodiscard]] std::vector<std::byte> seal(const Seal& seal, std::span<const std::byte> content);

/// The content of a sealed file, to which it refers; nothing when anything is wrong with it.
[[nodiscard]] std::optional<std::span<const std::byte>> unseal(const Seal& seal,
                                                               std::span<const std::byte> file);

/// Where a file named `name` about `folder` may lie: first in the folder itself, then in the cache
/// under a name that holds a hash of the folder's full path. An empty cache folder leaves it out.
[[nodiscard]] std::vector<std::filesystem::path> cache_places(
    const std::filesystem::path& folder, const std::filesystem::path& cache_folder,
    std::string_view name);

/// The bytes of a file in the cache, or nothing when there is none that can be read.
[[nodiscard]] std::optional<std::vector<std::byte>> read_cached(const std::filesystem::path& path);

/// Writes the file at the first of `places` that can be written, atomically; says where, or why
/// none could be.
struct Written {
  std::filesystem::path place;
  std::string problem;
};
[[nodiscard]] Written write_cached(std::span<const std::filesystem::path> places,
                                   std::span<const std::byte> file);

/// Lets one process of a machine at a time make the files about a folder, where the file system can
/// do that; the others wait and then find them made. After two seconds of waiting `tell` hears of
/// it, once. Never fails: without a lock work is done twice.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder, const TellCallback& tell = {});

 private:
  [[nodiscard]] bool soon() const noexcept;

  UniqueFd directory_;
};

}  // namespace millrace::io
