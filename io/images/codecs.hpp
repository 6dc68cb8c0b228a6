// SPDX-License-Identifier: Apache-2.0
//
// The two formats behind header.hpp and decoder.hpp. Names of libjpeg and libpng stay in the files
// that implement this one.
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

/// Pixels that were decoded into a buffer, and what was met on the way.
struct DecodedPixels {
  PixelView view;
  PictureState state = PictureState::Whole;
};

/// Each of the two formats: as the functions of the same meaning in header.hpp and decoder.hpp. No
/// box means the whole picture, checked up to the end of the file. `pixels` grows as needed;
/// `warning` becomes the first warning or empty.
[[nodiscard]] ImageHeader read_jpeg_header(std::span<const std::byte> encoded);
[[nodiscard]] ImageHeader read_png_header(std::span<const std::byte> encoded);
[[nodiscard]] DecodedPixels decode_jpeg(std::span<const std::byte> encoded,
                                        const std::optional<PixelBox>& box,
                                        std::vector<std::uint8_t>& pixels, std::string& warning);
[[nodiscard]] DecodedPixels decode_png(std::span<const std::byte> encoded,
                                       const std::optional<PixelBox>& box,
                                       std::vector<std::uint8_t>& pixels, std::string& warning);

/// A box that is empty or leaves the picture is a mistake of ours.
void check_box(const PixelBox& box, const ImageHeader& header);

/// Makes `pixels` hold `bytes`, without keeping what is in it. What a picture far beyond usual
/// photos took is given back, or every thread would end with the memory of the largest.
inline void make_room(std::vector<std::uint8_t>& pixels, std::size_t bytes) {
  if (pixels.size() >= bytes && pixels.size() <= std::max(bytes, kUsualPictureBytes)) return;
  pixels = std::vector<std::uint8_t>();
  pixels.resize(bytes);
}

}  // namespace millrace::io
