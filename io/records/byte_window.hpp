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

/// The bytes of a file seen through a window that moves. It reads little after a jump and more and
/// more while bytes are asked for in a row, so that neither small records nor large ones that are
/// skipped cost more than they must. One thread at a time.
class ByteWindow {
 public:
  /// Errors: Io.
  explicit ByteWindow(const std::filesystem::path& path);
  /// Bytes in memory, called `label` in messages; they must outlive the window.
  ByteWindow(std::span<const std::byte> bytes, std::string label);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }

  /// Bytes [offset, offset + count), which must lie in the file; valid until the next call. Errors:
  /// Io; Data when the file has become shorter.
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t offset, std::size_t count);
  /// At least one byte from `offset`, which must lie in the file, and what else is at hand.
  [[nodiscard]] std::span<const std::byte> from(std::uint64_t offset);

 private:
  void fill(std::uint64_t offset, std::size_t count);
  [[nodiscard]] bool covers(std::uint64_t offset, std::uint64_t count) const noexcept;

  std::string label_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> view_;  ///< of the buffer, or of all bytes in memory
  std::uint64_t begin_ = 0;          ///< place of the view in the file
  std::size_t step_ = 0;             ///< bytes of the last reading
};

/// Fills `out` from `offset` of an open file. Errors: Io; Data when the file ends before.
void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> out, const std::string& label);

}  // namespace millrace::io
