// SPDX-License-Identifier: Apache-2.0
//
// What a picture's file is, by its first bytes, and how large a picture may be: known to those who
// look for pictures, to those who keep them and to those who decode them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

enum class ImageFormat : std::uint8_t { Jpeg, Png, Other };

/// So many of a file's first bytes tell its format.
inline constexpr std::size_t kImageSignatureBytes = 8;

/// Limits of a picture, in pixels.
inline constexpr std::int32_t kMaxImageSide = 16'384;
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{64} << 20;

/// "JPEG", "PNG", "other"
[[nodiscard]] const char* name_of(ImageFormat format) noexcept;

/// The format by the first bytes; a file's name says nothing. Never fails.
[[nodiscard]] ImageFormat format_of(std::span<const std::byte> encoded) noexcept;

}  // namespace millrace
