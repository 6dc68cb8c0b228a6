// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/data/image_dataset.hpp"

namespace millrace::io {

/// Path of the packed images of a split: DIR/train.packed, DIR/validation.packed.
[[nodiscard]] std::filesystem::path packed_path(const std::filesystem::path& directory,
                                                Split split);

/// A set in a file of decoded images. Only its table is kept in memory. The file is read, not
/// mapped: so memory is bounded by the readers' buffers, and a truncated file is an error instead
/// of a crash. All functions are thread-safe.
class PackedImages final : public ImageDataset {
 public:
  /// Errors: Data if the file has another format, is truncated, or has a damaged header or table;
  /// Io.
  explicit PackedImages(const std::filesystem::path& path);
  /// The same for bytes in memory, which must outlive the object.
  PackedImages(std::span<const std::byte> file, std::string label);

  [[nodiscard]] std::string name() const override { return "packed pictures"; }
  [[nodiscard]] std::int64_t size() const override { return images_; }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  /// Fingerprint of the set from which the file was made.
  [[nodiscard]] std::uint32_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::uint64_t stored_bytes(std::int64_t index) const override;
  /// Also verifies the checksum.
  StoredImage stored(std::int64_t index, ReadBuffer& buffer) const override;
  [[nodiscard]] std::string where(std::int64_t index) const override;
  [[nodiscard]] std::optional<ImageSize> known_size(std::int64_t index) const override;
  [[nodiscard]] std::int64_t reading_bytes(int threads) const override;

  [[nodiscard]] std::int32_t shorter_side() const noexcept { return shorter_side_; }

  [[nodiscard]] std::uint64_t table_bytes() const noexcept { return table_.size(); }

 private:
  void parse();
  std::span<const std::byte> bytes_at(std::uint64_t offset, std::uint64_t count,
                                      std::vector<std::byte>& buffer) const;

  std::string label_;
  UniqueFd file_;
  std::span<const std::byte> memory_;  ///< if there is no file
  std::uint64_t size_ = 0;
  std::int64_t images_ = 0;
  std::int64_t classes_ = 0;
  std::int32_t shorter_side_ = 0;
  std::uint32_t fingerprint_ = 0;
  std::uint64_t largest_ = 0;
  std::vector<std::byte> table_;
};

}  // namespace millrace::io
