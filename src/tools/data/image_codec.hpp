// SPDX-License-Identifier: Apache-2.0
//
// What the tools do with the pixels of image files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/images/header.hpp"

namespace millrace::io {

/// What is wrong with an image file, or "".
[[nodiscard]] std::string image_problem(std::span<const std::byte> file);

/// Height and width according to the header; nothing if it is damaged.
[[nodiscard]] std::optional<ImageSize> measure_image(std::span<const std::byte> file);

/// An image prepared for a record: its size, and a replacement JPEG if the file is not an RGB or
/// gray JPEG (CMYK, PNG).
struct PreparedImage {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::byte> replacement;
};
/// Replacements have a quality of 100. Errors: Data, without the file's name.
[[nodiscard]] PreparedImage prepare_image(std::span<const std::byte> file);

/// Encodes the pixels of a view as a baseline JPEG file in YCbCr, without chroma subsampling.
/// `quality` is 1 to 100. Equal pixels give equal bytes. Errors: Internal, if the library fails.
[[nodiscard]] std::vector<std::byte> encode_rgb_jpeg(const PixelView& view, int quality);

/// A buffer for one packed image, reused from image to image.
struct PixelBuffer {
  std::vector<std::byte> pixels;
  std::int32_t height = 0;
  std::int32_t width = 0;
};
/// Decodes an image file and scales it to its packed_size(), into `out`. Errors: Data, without the
/// file's name.
void shrink_image(std::span<const std::byte> file, std::int32_t shorter_side, PixelBuffer& out);

/// The size of a packed image: the shorter side is scaled up or down to `shorter_side`, the longer
/// one in proportion, rounded down. Errors: as check_packed_size, for very long, thin images.
[[nodiscard]] ImageSize packed_size(std::int32_t height, std::int32_t width,
                                    std::int32_t shorter_side);
/// Errors: Data if an image exceeds 16384 pixels per side or 64 Mi pixels.
void check_packed_size(std::int64_t height, std::int64_t width);

}  // namespace millrace::io
