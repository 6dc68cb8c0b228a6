// SPDX-License-Identifier: Apache-2.0
//
// Detects the format of an image file by its first bytes, limits the size of an image, and says
// where its object is. Used by the code that finds, stores and decodes images.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

enum class ImageFormat : std::uint8_t { Jpeg, Png, Other };

/// Number of leading bytes that format_of() needs.
inline constexpr std::size_t kImageSignatureBytes = 8;

/// Limits of an image, in pixels.
inline constexpr std::int32_t kMaxImageSide = 16'384;
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{64} << 20;

/// "JPEG", "PNG", "other"
[[nodiscard]] constexpr const char* name_of(ImageFormat format) noexcept {
  if (format == ImageFormat::Jpeg) return "JPEG";
  return format == ImageFormat::Png ? "PNG" : "other";
}

/// The format according to the first bytes; the file name does not matter. Never fails.
[[nodiscard]] inline ImageFormat format_of(std::span<const std::byte> encoded) noexcept {
  constexpr std::array<std::uint8_t, 3> kJpeg = {0xff, 0xd8, 0xff};
  constexpr std::array<std::uint8_t, kImageSignatureBytes> kPng = {0x89, 'P',  'N',  'G',
                                                                   '\r', '\n', 0x1a, '\n'};
  const auto starts_with = [&](std::span<const std::uint8_t> start) {
    return encoded.size() >= start.size() &&
           std::ranges::equal(encoded.first(start.size()), std::as_bytes(start));
  };
  if (starts_with(kJpeg)) return ImageFormat::Jpeg;
  return starts_with(kPng) ? ImageFormat::Png : ImageFormat::Other;
}

/// Bounding box of an object in an image, as fractions of its height and width: 0 <= top < bottom
/// <= 1 and 0 <= left < right <= 1. Some data sets contain boxes; random crops use them.
struct ObjectBox {
  float top = 0.0f;
  float left = 0.0f;
  float bottom = 0.0f;
  float right = 0.0f;
  friend bool operator==(const ObjectBox&, const ObjectBox&) = default;
};

/// Whether the box satisfies these bounds; false for NaNs.
[[nodiscard]] constexpr bool is_within_image(const ObjectBox& box) noexcept {
  return box.top >= 0.0f && box.top < box.bottom && box.bottom <= 1.0f && box.left >= 0.0f &&
         box.left < box.right && box.right <= 1.0f;
}

}  // namespace millrace
