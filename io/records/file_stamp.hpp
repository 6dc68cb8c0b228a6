// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace millrace::io {

/// What tells that a file has changed since it was looked at. Times count nanoseconds since 1970.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// The stamp of a file or folder; nothing, and errno says why, when it cannot be looked at.
[[nodiscard]] std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept;

/// The stamp of an open file, called `label` in messages. Errors: Io, also for what is no regular
/// file.
[[nodiscard]] FileStamp regular_stamp(int fd, const std::string& label);

/// The time of a stamp, or -1 for something that is not there.
[[nodiscard]] std::int64_t modified_ns(const std::filesystem::path& path) noexcept;

}  // namespace millrace::io
