// SPDX-License-Identifier: Apache-2.0
//
// Detects the format of an image file by its first bytes and limits the size of an image. Used by
// the code that finds, stores and decodes images.
#pragma once

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
[[nodiscard]] const char* name_of(ImageFormat format) noexcept;

/// The format according to the first bytes; the file name does not matter. Never fails.
[[nodiscard]] ImageFormat format_of(std::span<const std::byte> encoded) noexcept;

}  // namespace millrace
