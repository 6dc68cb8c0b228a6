// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace::io {

/// Many files that many threads read at random offsets. Files stay open after the first read, as
/// far as the process's limit on open files allows; the others are opened for every read.
class FilePool {
 public:
  explicit FilePool(std::vector<std::filesystem::path> paths);
  ~FilePool();
  FilePool(FilePool&&) = delete;

  [[nodiscard]] const std::filesystem::path& path(std::size_t file) const { return paths_[file]; }
  /// Fills `out` from `offset` of a file. Errors: Io; Data if the file is too short.
  void read(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  [[nodiscard]] bool keep(std::size_t file, int descriptor) const noexcept;

  std::vector<std::filesystem::path> paths_;
  std::unique_ptr<std::atomic<int>[]> open_;  ///< -1: not open
  mutable std::atomic<std::int64_t> may_open_;
};

}  // namespace millrace::io
