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
#include <string_view>

#include "core/image_format.hpp"
#include "core/object_box.hpp"

namespace millrace::io::packed {

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

}  // namespace millrace::io::packed
