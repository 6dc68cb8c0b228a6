// SPDX-License-Identifier: Apache-2.0
//
// Decodes images, or boxes of them, into one reused buffer. No other state is kept, so the result
// does not depend on earlier images.
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

/// RGB bytes of a box of an image, three per pixel, rows `stride` bytes apart. The decoder owns
/// them.
struct PixelView {
  const std::uint8_t* pixels = nullptr;  ///< upper left corner of the box
  std::int64_t stride = 0;               ///< bytes
  PixelBox box;                          ///< position within the image
  [[nodiscard]] std::int32_t width() const noexcept { return box.right - box.left; }
  [[nodiscard]] std::int32_t height() const noexcept { return box.bottom - box.top; }
  /// Pixel (x, y) of the image, followed by the rest of the box's row.
  [[nodiscard]] const std::uint8_t* at(std::int32_t x, std::int32_t y) const noexcept {
    return pixels + (y - box.top) * stride + std::int64_t{3} * (x - box.left);
  }
};

/// Result of decoding. Damaged: some pixels are wrong because data is missing or corrupt. Defects
/// that do not affect pixels (no end marker, bytes between segments) only cause a warning.
enum class PictureState : std::uint8_t { Whole, Damaged };

struct DecodedImage {
  PixelView view;
  PictureState state = PictureState::Whole;
  std::string_view warning;  ///< the first warning, or empty
};

/// Maximum pixel bytes of usual photos: 8 Mi pixels. Buffers of larger images are not kept.
inline constexpr std::size_t kUsualPictureBytes = std::size_t{24} << 20;

/// One per thread. Results are valid until the next call.
class ImageDecoder {
 public:
  /// Decodes the whole image, up to and including the file's end. Error(Data) if nothing can be
  /// decoded. A damaged JPEG is decoded as far as possible, with missing pixels gray.
  DecodedImage decode(std::span<const std::byte> encoded);

  /// Decodes only the pixels of `box` (not empty, within the image); they equal those of the whole
  /// image. Data after the box is not read, so damage there is not detected.
  DecodedImage decode(std::span<const std::byte> encoded, const PixelBox& box);

  /// Frees the buffer.
  void release() noexcept { pixels_ = std::vector<std::uint8_t>(); }

  /// Size of the buffer: bytes of the largest box so far, or, if that was larger than usual photos,
  /// of the last box.
  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return pixels_.capacity(); }

 private:
  std::vector<std::uint8_t> pixels_;
  std::string warning_;
};

}  // namespace millrace::io
