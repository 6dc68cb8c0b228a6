// SPDX-License-Identifier: Apache-2.0
#include "io/images/header.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "io/images/codecs.hpp"

namespace millrace::io {
namespace {

/// "it begins with the bytes 3c 68 74 6d"
[[noreturn]] void fail_as_other(std::span<const std::byte> encoded) {
  if (encoded.empty()) fail(ErrorKind::Data, "neither a JPEG nor a PNG: it is empty");
  std::string bytes;
  for (const std::byte byte : encoded.first(std::min<std::size_t>(encoded.size(), 4)))
    bytes += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  fail(ErrorKind::Data, "neither a JPEG nor a PNG: it begins with the bytes{}", bytes);
}

}  // namespace

ImageHeader read_header(std::span<const std::byte> encoded) {
  switch (format_of(encoded)) {
    case ImageFormat::Jpeg:
      return read_jpeg_header(encoded);
    case ImageFormat::Png:
      return read_png_header(encoded);
    case ImageFormat::Other:
      break;
  }
  fail_as_other(encoded);
}

void check_image_size(std::int64_t width, std::int64_t height) {
  if (width < 1 || height < 1)
    fail(ErrorKind::Data, "an image of {} x {} pixels is empty", width, height);
  if (width > kMaxImageSide || height > kMaxImageSide)
    fail(ErrorKind::Data, "an image of {} x {} pixels; the limit is {} per side", width, height,
         kMaxImageSide);
  if (width * height > kMaxImagePixels)
    fail(ErrorKind::Data, "an image of {} x {} pixels; the limit is {} pixels", width, height,
         kMaxImagePixels);
}

}  // namespace millrace::io
