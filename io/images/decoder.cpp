// SPDX-License-Identifier: Apache-2.0
#include "io/images/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::io {
namespace {

std::unique_ptr<ImageCodec> open_codec(std::span<const std::byte> encoded) {
  switch (format_of(encoded)) {
    case ImageFormat::Jpeg:
      return open_jpeg(encoded);
    case ImageFormat::Png:
      return open_png(encoded);
    case ImageFormat::Other:
      break;
  }
  if (encoded.empty()) fail(ErrorKind::Data, "neither a JPEG nor a PNG: it is empty");
  std::string bytes;
  for (const std::byte byte : encoded.first(std::min<std::size_t>(encoded.size(), 4)))
    bytes += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  fail(ErrorKind::Data, "neither a JPEG nor a PNG: it begins with the bytes{}", bytes);
}

}  // namespace

ImageHeader read_header(std::span<const std::byte> encoded) {
  return open_codec(encoded)->header();
}

const ImageHeader& ImageDecoder::open(std::span<const std::byte> encoded) {
  codec_ = open_codec(encoded);
  return codec_->header();
}

DecodedImage ImageDecoder::decode() {
  MILLRACE_ASSERT(codec_ != nullptr);
  const ImageHeader& header = codec_->header();
  return decode({.bottom = header.height, .right = header.width}, true);
}

DecodedImage ImageDecoder::decode(const PixelBox& box) { return decode(box, false); }

DecodedImage ImageDecoder::decode(const PixelBox& box, bool to_the_end) {
  // Closed in any case: it may hold the memory of a whole image.
  const std::unique_ptr<ImageCodec> codec = std::move(codec_);
  MILLRACE_ASSERT(codec != nullptr);
  const ImageHeader& header = codec->header();
  MILLRACE_ASSERT(box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom &&
                  box.right <= header.width && box.bottom <= header.height);
  const PixelView view = codec->decode(box, pixels_);
  if (to_the_end) codec->finish();
  warning_ = codec->warning();
  return {.view = view, .state = codec->state(), .warning = warning_};
}

}  // namespace millrace::io
