// SPDX-License-Identifier: Apache-2.0
//
// What ImageDecoder needs of a format. Only jpeg.cpp, png.cpp and the tools' encoder use names of
// libjpeg and libpng.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

/// A file whose header has been read. The file's bytes must outlive it.
class ImageCodec {
 public:
  virtual ~ImageCodec() = default;
  [[nodiscard]] const ImageHeader& header() const noexcept { return header_; }
  /// Decodes `box` (not empty, within the image) into `pixels`, which grows as needed. Called at
  /// most once. Error(Data) if nothing can be decoded.
  virtual PixelView decode(const PixelBox& box, std::vector<std::uint8_t>& pixels) = 0;
  /// Reads from the last decoded row to the end of the file. Error(Data).
  virtual void finish() = 0;
  [[nodiscard]] virtual ImageState state() const noexcept { return ImageState::Whole; }
  /// The first warning, or "".
  [[nodiscard]] virtual const char* warning() const noexcept = 0;

 protected:
  ImageHeader header_;
};

/// Reads the header. Error(Data): damage before the pixels, an unsupported kind (lossless, 12 bits,
/// two channels), or a limit exceeded.
[[nodiscard]] std::unique_ptr<ImageCodec> open_jpeg(std::span<const std::byte> encoded);
[[nodiscard]] std::unique_ptr<ImageCodec> open_png(std::span<const std::byte> encoded);

/// Error(Data), with the limit, if an image of this size exceeds one.
inline void check_image_size(std::int64_t width, std::int64_t height) {
  if (width < 1 || height < 1)
    fail(ErrorKind::Data, "an image of {} x {} pixels is empty", width, height);
  if (width > kMaxImageSide || height > kMaxImageSide)
    fail(ErrorKind::Data, "an image of {} x {} pixels; the limit is {} per side", width, height,
         kMaxImageSide);
  if (width * height > kMaxImagePixels)
    fail(ErrorKind::Data, "an image of {} x {} pixels; the limit is {} pixels", width, height,
         kMaxImagePixels);
}

/// Resizes `pixels` to at least `bytes`; its content is lost. Memory of unusually large images is
/// freed, so that not every thread keeps a buffer of that size.
inline void make_room(std::vector<std::uint8_t>& pixels, std::size_t bytes) {
  if (pixels.size() >= bytes && pixels.size() <= std::max(bytes, kUsualImageBytes)) return;
  pixels = std::vector<std::uint8_t>();
  pixels.resize(bytes);
}

}  // namespace millrace::io
