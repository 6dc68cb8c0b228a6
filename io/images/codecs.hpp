// SPDX-License-Identifier: Apache-2.0
//
// The two formats that header.hpp and decoder.hpp support. Only the files that implement this
// header use names of libjpeg and libpng.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/image_records.hpp"
#include "io/images/decoder.hpp"
#include "io/images/header.hpp"

namespace millrace::io {

/// Pixels decoded into a buffer, and their state.
struct DecodedPixels {
  PixelView view;
  PictureState state = PictureState::Whole;
};

/// As the corresponding functions in header.hpp and decoder.hpp, for one format. Without a box, the
/// whole image is decoded and checked up to the end of the file. `pixels` grows as needed;
/// `warning` becomes the first warning or empty.
[[nodiscard]] ImageHeader read_jpeg_header(std::span<const std::byte> encoded);
[[nodiscard]] ImageHeader read_png_header(std::span<const std::byte> encoded);
[[nodiscard]] DecodedPixels decode_jpeg(std::span<const std::byte> encoded,
                                        const std::optional<PixelBox>& box,
                                        std::vector<std::uint8_t>& pixels, std::string& warning);
[[nodiscard]] DecodedPixels decode_png(std::span<const std::byte> encoded,
                                       const std::optional<PixelBox>& box,
                                       std::vector<std::uint8_t>& pixels, std::string& warning);

/// Asserts that the box is not empty and lies within the image.
void check_box(const PixelBox& box, const ImageHeader& header);

/// Resizes `pixels` to at least `bytes`; its content is lost. Memory of unusually large images is
/// freed, so that not every thread keeps a buffer of that size.
inline void make_room(std::vector<std::uint8_t>& pixels, std::size_t bytes) {
  if (pixels.size() >= bytes && pixels.size() <= std::max(bytes, kUsualPictureBytes)) return;
  pixels = std::vector<std::uint8_t>();
  pixels.resize(bytes);
}

}  // namespace millrace::io
