// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// A matrix of float32 in numpy's format (numpy.load), written row by row. Until commit() the file
/// has a temporary name.
class NpyFile {
 public:
  /// Errors: Io.
  NpyFile(const std::filesystem::path& path, std::int64_t rows, std::int64_t columns);
  /// Writes whole rows from number `row` on. Errors: Io.
  void write(std::int64_t row, std::span<const float> values) const;
  /// All rows must have been written. Errors: Io.
  void commit() { file_.commit(); }

 private:
  StagedFile file_;
  std::int64_t columns_;
  std::uint64_t begin_ = 0;  ///< of the values
};

}  // namespace millrace::io
