// SPDX-License-Identifier: Apache-2.0
#include "io/records/file_stamp.hpp"

#include <sys/stat.h>

namespace millrace::io {

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  return FileStamp{.bytes = static_cast<std::uint64_t>(status.st_size),
                   .modified_ns = status.st_mtim.tv_sec * kNsPerSecond + status.st_mtim.tv_nsec};
}

std::int64_t modified_ns(const std::filesystem::path& path) noexcept {
  const std::optional<FileStamp> stamp = stamp_of(path);
  return stamp ? stamp->modified_ns : -1;
}

}  // namespace millrace::io
