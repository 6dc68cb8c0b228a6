// SPDX-License-Identifier: Apache-2.0
#include "io/records/file_stamp.hpp"

#include <sys/stat.h>

#include <cerrno>

#include "core/error.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {
namespace {

FileStamp to_stamp(const struct stat& status) noexcept {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  return {.bytes = static_cast<std::uint64_t>(status.st_size),
          .modified_ns = status.st_mtim.tv_sec * kNsPerSecond + status.st_mtim.tv_nsec};
}

}  // namespace

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return to_stamp(status);
}

FileStamp regular_stamp(int fd, const std::string& label) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_io("inspect", label, errno);
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::Io, "{}: not a regular file", label);
  return to_stamp(status);
}

std::int64_t modified_ns(const std::filesystem::path& path) noexcept {
  const std::optional<FileStamp> stamp = stamp_of(path);
  return stamp ? stamp->modified_ns : -1;
}

}  // namespace millrace::io
