// SPDX-License-Identifier: Apache-2.0
#include "core/image_format.hpp"

#include <algorithm>
#include <array>

namespace millrace {
namespace {

constexpr std::array<std::uint8_t, 3> kJpegStart = {0xff, 0xd8, 0xff};
constexpr std::array<std::uint8_t, kImageSignatureBytes> kPngStart = {0x89, 'P',  'N',  'G',
                                                                      '\r', '\n', 0x1a, '\n'};

bool starts_with(std::span<const std::byte> encoded, std::span<const std::uint8_t> start) {
  return encoded.size() >= start.size() &&
         std::ranges::equal(encoded.first(start.size()), std::as_bytes(start));
}

}  // namespace

const char* name_of(ImageFormat format) noexcept {
  if (format == ImageFormat::Jpeg) return "JPEG";
  return format == ImageFormat::Png ? "PNG" : "other";
}

ImageFormat format_of(std::span<const std::byte> encoded) noexcept {
  if (starts_with(encoded, kJpegStart)) return ImageFormat::Jpeg;
  if (starts_with(encoded, kPngStart)) return ImageFormat::Png;
  return ImageFormat::Other;
}

}  // namespace millrace
