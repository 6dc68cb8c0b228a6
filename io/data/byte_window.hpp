// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// Reads a file through a moving window. It reads little after a jump, and more and more during
/// sequential access. So small records are read in large pieces, and skipped data is hardly read.
/// Not thread-safe.
class ByteWindow {
 public:
  /// Errors: Io.
  explicit ByteWindow(const std::filesystem::path& path);
  /// Bytes in memory, called `label` in messages; they must outlive the window.
  ByteWindow(std::span<const std::byte> bytes, std::string label);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }

  /// Bytes [offset, offset + count), which must be in the file; valid until the next call. Errors:
  /// Io; Data if the file was truncated meanwhile.
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t offset, std::size_t count);
  /// At least one byte from `offset`, which must be in the file, and all following bytes in the
  /// buffer.
  [[nodiscard]] std::span<const std::byte> from(std::uint64_t offset);

 private:
  void fill(std::uint64_t offset, std::size_t count);
  [[nodiscard]] bool covers(std::uint64_t offset, std::uint64_t count) const noexcept;

  std::string label_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> view_;  ///< part of the buffer, or all bytes in memory
  std::uint64_t begin_ = 0;          ///< offset of the view in the file
  std::size_t step_ = 0;             ///< bytes of the last read
};

}  // namespace millrace::io
