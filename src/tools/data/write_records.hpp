// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/image_format.hpp"
#include "io/atomic_file.hpp"

namespace millrace::io {

/// Content of an Example to write. Boxes are written if there are any.
struct ExampleContent {
  std::span<const std::byte> encoded;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t label = 0;
  std::string synset;
  std::string filename;
  std::span<const ObjectBox> boxes;
};

/// Writes the Example into `payload`; equal content gives equal bytes.
void write_example(const ExampleContent& content, std::vector<std::byte>& payload);

/// Writes a file of records as a StagedFile: after a kill there is a complete file or none. Errors:
/// Io.
class RecordWriter {
 public:
  explicit RecordWriter(const std::filesystem::path& path);

  /// Errors: Data if the payload exceeds kMaxRecordBytes.
  void append(std::span<const std::byte> payload);
  void commit();
  [[nodiscard]] std::uint64_t bytes() const noexcept { return written_ + pending_.size(); }

 private:
  void flush();

  std::filesystem::path path_;
  StagedFile file_;
  std::vector<std::byte> pending_;
  std::uint64_t written_ = 0;
};

}  // namespace millrace::io
