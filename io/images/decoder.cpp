// SPDX-License-Identifier: Apache-2.0
#include "io/images/decoder.hpp"

#include "core/error.hpp"
#include "io/images/codecs.hpp"

namespace millrace::io {
namespace {

DecodedImage decode_any(std::span<const std::byte> encoded, const std::optional<PixelBox>& box,
                        std::vector<std::uint8_t>& pixels, std::string& warning) {
  const ImageFormat format = format_of(encoded);
  if (format == ImageFormat::Other) static_cast<void>(read_header(encoded));  // throws the error
  const DecodedPixels decoded = format == ImageFormat::Png
                                    ? decode_png(encoded, box, pixels, warning)
                                    : decode_jpeg(encoded, box, pixels, warning);
  return {.view = decoded.view, .state = decoded.state, .warning = warning};
}

}  // namespace

void check_box(const PixelBox& box, const ImageHeader& header) {
  MILLRACE_ASSERT(box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom &&
                  box.right <= header.width && box.bottom <= header.height);
}

DecodedImage ImageDecoder::decode(std::span<const std::byte> encoded) {
  return decode_any(encoded, std::nullopt, pixels_, warning_);
}

DecodedImage ImageDecoder::decode(std::span<const std::byte> encoded, const PixelBox& box) {
  return decode_any(encoded, box, pixels_, warning_);
}

}  // namespace millrace::io
