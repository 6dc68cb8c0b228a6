// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/images/codecs.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

struct DecodedImage {
  PixelView view;
  ImageState state = ImageState::Whole;
  std::string_view warning;  ///< the first warning, or empty
};

/// Reads the header of a JPEG or PNG. Error(Data): another format, damage before the pixels, an
/// unsupported kind (lossless, 12 bits, two channels), or a limit exceeded.
[[nodiscard]] ImageHeader read_header(std::span<const std::byte> encoded);

/// Decodes images, or boxes of them, into one reused buffer. No other state is kept, so the result
/// does not depend on earlier images. One per thread; results are valid until the next call.
class ImageDecoder {
 public:
  /// Reads the header of a file, which decode() then continues; the bytes must stay until then.
  /// Errors: as read_header.
  const ImageHeader& open(std::span<const std::byte> encoded);

  /// Decodes the opened image up to and including the file's end. Error(Data) if nothing can be
  /// decoded. A damaged JPEG is decoded as far as possible, with missing pixels gray.
  DecodedImage decode();
  /// Decodes only the pixels of `box` (not empty, within the image); they equal those of the whole
  /// image. Data after the box is not read, so damage there is not detected.
  DecodedImage decode(const PixelBox& box);

  /// Frees the buffer.
  void release() noexcept { pixels_ = std::vector<std::uint8_t>(); }
  /// Size of the buffer: bytes of the largest box so far, or, if that was larger than usual photos,
  /// of the last box.
  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return pixels_.capacity(); }

 private:
  DecodedImage decode(const PixelBox& box, bool to_the_end);

  std::unique_ptr<ImageCodec> codec_;  ///< of the opened file
  std::vector<std::uint8_t> pixels_;
  std::string warning_;
};

}  // namespace millrace::io
