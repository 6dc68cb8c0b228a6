// SPDX-License-Identifier: Apache-2.0
//
// Decodes pictures, or boxes of them, into one buffer that is used again. Nothing else is kept from
// one picture to the next, so what a picture decodes to does not depend on those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/image_records.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

/// RGB bytes of a box of a picture, three a pixel, rows `stride` bytes apart. Belongs to whoever
/// decoded it.
struct PixelView {
  const std::uint8_t* pixels = nullptr;  ///< of the box's upper left corner
  std::int64_t stride = 0;               ///< bytes
  PixelBox box;                          ///< place within the picture
  [[nodiscard]] std::int32_t width() const noexcept { return box.right - box.left; }
  [[nodiscard]] std::int32_t height() const noexcept { return box.bottom - box.top; }
  /// Pixel (x, y) of the picture, and behind it the rest of the box's row.
  [[nodiscard]] const std::uint8_t* at(std::int32_t x, std::int32_t y) const noexcept {
    return pixels + (y - box.top) * stride + std::int64_t{3} * (x - box.left);
  }
};

/// What decoding met. Damaged: some pixels are not those that were encoded, because data is missing
/// or wrong. Oddities that leave all pixels as they were (no end marker, bytes between segments)
/// only leave a warning.
enum class PictureState : std::uint8_t { Whole, Damaged };

struct DecodedImage {
  PixelView view;
  PictureState state = PictureState::Whole;
  std::string_view warning;  ///< the first one; empty if there was none
};

/// Bytes that the pixels of usual photos stay below: 8 Mi pixels. Memory of larger ones is not
/// kept.
inline constexpr std::size_t kUsualPictureBytes = std::size_t{24} << 20;

/// One per thread. What it hands out is valid until it is used again.
class ImageDecoder {
 public:
  /// The whole picture, up to and including the file's end. Error(Data) where nothing can be
  /// decoded; a JPEG that is merely damaged is decoded as far as it goes, missing pixels gray.
  DecodedImage decode(std::span<const std::byte> encoded);

  /// The pixels of `box` (not empty, within the picture) alone; they equal those of the whole
  /// picture. What lies behind the box is not looked at, damage there not seen.
  DecodedImage decode(std::span<const std::byte> encoded, const PixelBox& box);

  /// Gives the buffer's memory back.
  void release() noexcept { pixels_ = std::vector<std::uint8_t>(); }

  /// Bytes that the buffer holds: those of the largest box decoded so far, where that was no larger
  /// than usual photos are, or else those of the last one.
  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return pixels_.capacity(); }

 private:
  std::vector<std::uint8_t> pixels_;
  std::string warning_;
};

}  // namespace millrace::io
