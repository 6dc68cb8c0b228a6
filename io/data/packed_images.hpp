// SPDX-License-Identifier: Apache-2.0
//
// A file of decoded images, for machines that cannot decode JPEG as fast as they train. Each image
// is decoded once and scaled to a fixed shorter side; crops still differ each epoch. Numbers are
// little-endian:
//
//   64 bytes   header: magic, version, shorter side, images, classes, offset of the table,
//              fingerprint of the source, CRC-32C
//   images     height x width x 3 bytes each, in rows; then its boxes, 4 floats each; padded to 64
//   table      32 bytes per image: offset, height, width, label, boxes, CRC-32C of pixels and boxes
//   4 bytes    CRC-32C of the table
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/image_format.hpp"
#include "io/atomic_file.hpp"
#include "io/data/image_dataset.hpp"

namespace millrace::io {

namespace packed {

inline constexpr std::string_view kMagic = "MLRPACKD";
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kHeadBytes = 64;
inline constexpr std::size_t kHeadCrcAt = 60;
inline constexpr std::uint64_t kAlign = 64;

/// An entry of the table.
struct Row {
  static constexpr std::size_t kBytes = 32;
  std::uint64_t offset = 0;
  std::int32_t height = 0;
  std::int32_t width = 0;
  std::int32_t label = 0;
  std::uint32_t boxes = 0;
  std::uint32_t crc = 0;
  std::uint32_t zero = 0;
  static constexpr auto kFields = std::tuple(&Row::offset, &Row::height, &Row::width, &Row::label,
                                             &Row::boxes, &Row::crc, &Row::zero);

  [[nodiscard]] std::uint64_t pixel_bytes() const {
    return std::uint64_t{3} * static_cast<std::uint64_t>(height) *
           static_cast<std::uint64_t>(width);
  }
  /// Boxes begin at a multiple of 4, to align floats.
  [[nodiscard]] std::uint64_t boxes_at() const { return (pixel_bytes() + 3) / 4 * 4; }
  [[nodiscard]] std::uint64_t bytes() const { return boxes_at() + boxes * sizeof(ObjectBox); }
};

/// Whether an image may have this size.
[[nodiscard]] inline bool is_size(std::int64_t height, std::int64_t width) {
  return height >= 1 && width >= 1 && height <= kMaxImageSide && width <= kMaxImageSide &&
         height * width <= kMaxImagePixels;
}

}  // namespace packed

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
