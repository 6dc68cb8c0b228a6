// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace millrace::io {

/// Size and modification time, to detect that a file has changed. Times are nanoseconds since 1970.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// The stamp of a file or folder; empty, with the reason in errno, on failure.
[[nodiscard]] std::optional<FileStamp> stamp_of(const std::filesystem::path& path) noexcept;

/// The stamp of an open file, called `label` in messages. Errors: Io, also if it is not a regular
/// file.
[[nodiscard]] FileStamp regular_stamp(int fd, const std::string& label);

/// The modification time, or -1 if the file does not exist.
[[nodiscard]] std::int64_t modified_ns(const std::filesystem::path& path) noexcept;

}  // namespace millrace::io
