// SPDX-License-Identifier: Apache-2.0
//
// Synthetic images for tests, and files made from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/image_records.hpp"
#include "io/images/reader.hpp"

namespace millrace::io {

/// RGB bytes, rows without gaps.
struct Image {
  std::int32_t width = 0;
  std::int32_t height = 0;
  std::vector<std::uint8_t> bytes;
  [[nodiscard]] PixelView view() const {
    return {.pixels = bytes.data(),
            .stride = std::int64_t{3} * width,
            .box = {.bottom = height, .right = width}};
  }
};

/// Slopes, edges and noise; tests/golden/record_pillow.py computes the same.
Image make_image(std::int32_t width, std::int32_t height);

/// The pixels of a view.
Image copy_of(const PixelView& view);
/// The pixels of `box` in a whole image.
Image cut(const Image& image, const PixelBox& box);

enum class JpegColours : std::uint8_t { YCbCr, Gray, Rgb, Cmyk, Ycck, TwoChannels };

struct JpegOptions {
  int horizontal = 1;  ///< luma samples per chroma sample
  int vertical = 1;
  bool progressive = false;
  bool arithmetic = false;  ///< arithmetic instead of Huffman coding
  JpegColours colours = JpegColours::YCbCr;
  int quality = 90;
  unsigned restart_rows = 0;  ///< rows of blocks between restart markers
  int scans = 0;  ///< number of scans of a progressive gray file, the last ones repeated
};

using Bytes = std::vector<std::byte>;

/// Opens and decodes the whole file.
inline DecodedImage decode(ImageDecoder& decoder, std::span<const std::byte> file) {
  decoder.open(file);
  return decoder.decode();
}
/// Opens the file and decodes a box of it.
inline DecodedImage decode(ImageDecoder& decoder, std::span<const std::byte> file,
                           const PixelBox& box) {
  decoder.open(file);
  return decoder.decode(box);
}

/// Channels after the third are computed from the first.
Bytes encode_jpeg(const Image& image, const JpegOptions& options = {});

/// The four stored channels of a CMYK or YCCK JPEG, read with plain libjpeg, as hashed by tools
/// that compare decoders.
std::vector<std::uint8_t> stored_inks(std::span<const std::byte> file);

enum class PngColours : std::uint8_t { Rgb, Rgba, Gray, Palette, Rgb16 };
struct PngOptions {
  PngColours colours = PngColours::Rgb;
  bool interlaced = false;
  std::size_t texts = 0;       ///< compressed texts before the pixels
  std::size_t text_bytes = 0;  ///< of each
};
Bytes encode_png(const Image& image, const PngOptions& options = {});

/// The file with these sides in its header, without other changes.
Bytes with_jpeg_size(Bytes file, unsigned width, unsigned height);

/// First 16 hexadecimal digits of the SHA-256.
std::string short_digest(std::span<const std::uint8_t> bytes);

}  // namespace millrace::io
