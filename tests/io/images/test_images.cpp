// SPDX-License-Identifier: Apache-2.0
#include "tests/io/images/test_images.hpp"

#include <cstdio>

#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/sha256.hpp"

namespace millrace::io {
namespace {

std::uint8_t pixel_at(std::uint32_t x, std::uint32_t y, std::uint32_t c) {
  const std::uint32_t slope = (3 * x + 2 * y) * (c + 1);
  const std::uint32_t edge = ((x / 5 + y / 7) % 2) * 90;
  const std::uint32_t noise = ((x * 2654435761u) ^ (y * 2246822519u) ^ (c * 3266489917u)) >> 27;
  return static_cast<std::uint8_t>(slope % 131 + edge + noise);
}

/// Channels of the file and the color space passed to the encoder.
struct JpegInput {
  J_COLOR_SPACE in;
  J_COLOR_SPACE stored;
  int channels;
};

JpegInput input_of(JpegColours colours) {
  switch (colours) {
    case JpegColours::YCbCr:
      break;
    case JpegColours::Gray:
      return {JCS_GRAYSCALE, JCS_GRAYSCALE, 1};
    case JpegColours::Rgb:
      return {JCS_RGB, JCS_RGB, 3};
    case JpegColours::Cmyk:
      return {JCS_CMYK, JCS_CMYK, 4};
    case JpegColours::Ycck:
      return {JCS_CMYK, JCS_YCCK, 4};
    case JpegColours::TwoChannels:
      return {JCS_UNKNOWN, JCS_UNKNOWN, 2};
  }
  return {JCS_RGB, JCS_YCbCr, 3};
}

/// The first pass, and then passes that refine the same bit of the first coefficient.
std::vector<jpeg_scan_info> repeated_scans(int count) {
  std::vector<jpeg_scan_info> scans;
  for (int i = 0; i < count; ++i) {
    jpeg_scan_info scan{};
    scan.comps_in_scan = 1;
    scan.Ss = scan.Se = i == 0 ? 0 : 1 + (i - 1) % 63;
    scans.push_back(scan);
  }
  return scans;
}

void write_rows(jpeg_compress_struct& codec, const Image& image, std::size_t channels) {
  std::vector<std::uint8_t> row(static_cast<std::size_t>(image.width) * channels);
  while (codec.next_scanline < codec.image_height) {
    const std::uint8_t* const from =
        image.bytes.data() + std::size_t{3} * codec.next_scanline * codec.image_width;
    for (std::size_t x = 0; x < codec.image_width; ++x)
      for (std::size_t c = 0; c < channels; ++c) row[channels * x + c] = from[3 * x + c % 3];
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&codec, rows, 1);
  }
}

}  // namespace

Image make_image(std::int32_t width, std::int32_t height) {
  Image image{.width = width, .height = height, .bytes = {}};
  for (std::int32_t y = 0; y < height; ++y)
    for (std::int32_t x = 0; x < width; ++x)
      for (std::uint32_t c = 0; c < 3; ++c)
        image.bytes.push_back(
            pixel_at(static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y), c));
  return image;
}

Image copy_of(const PixelView& view) {
  Image image{.width = view.width(), .height = view.height(), .bytes = {}};
  for (std::int32_t y = view.box.top; y < view.box.bottom; ++y) {
    const std::uint8_t* const row = view.at(view.box.left, y);
    image.bytes.insert(image.bytes.end(), row, row + std::ptrdiff_t{3} * view.width());
  }
  return image;
}

Image cut(const Image& image, const PixelBox& box) {
  PixelView view = image.view();
  view.pixels = view.at(box.left, box.top);
  view.box = box;
  return copy_of(view);
}

Bytes encode_jpeg(const Image& image, const JpegOptions& options) {
  const JpegInput input = input_of(options.colours);
  jpeg_compress_struct codec{};
  jpeg_error_mgr errors{};  // the default handler ends the program, which no test triggers
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&codec, &memory, &size);
  codec.image_width = static_cast<JDIMENSION>(image.width);
  codec.image_height = static_cast<JDIMENSION>(image.height);
  codec.input_components = input.channels;
  codec.in_color_space = input.in;
  jpeg_set_defaults(&codec);
  jpeg_set_colorspace(&codec, input.stored);
  jpeg_set_quality(&codec, options.quality, TRUE);
  codec.comp_info[0].h_samp_factor = options.horizontal;
  codec.comp_info[0].v_samp_factor = options.vertical;
  codec.restart_in_rows = static_cast<int>(options.restart_rows);
  const std::vector<jpeg_scan_info> scans = repeated_scans(options.scans);
  if (options.progressive) jpeg_simple_progression(&codec);
  codec.arith_code = options.arithmetic ? TRUE : FALSE;
  if (!scans.empty()) {
    codec.scan_info = scans.data();
    codec.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&codec, TRUE);
  write_rows(codec, image, static_cast<std::size_t>(input.channels));
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  const auto* const begin = reinterpret_cast<const std::byte*>(memory);
  Bytes file(begin, begin + size);
  std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc): allocated by the library
  return file;
}

namespace {

/// Rows of the file in its color space.
std::vector<std::uint8_t> png_row(const Image& image, std::int32_t y, PngColours colours) {
  std::vector<std::uint8_t> row;
  const std::uint8_t* const from = image.view().at(0, y);
  for (std::ptrdiff_t x = 0; x < image.width; ++x) {
    const std::uint8_t* const pixel = from + 3 * x;
    switch (colours) {
      case PngColours::Gray:
      case PngColours::Palette:
        row.push_back(pixel[0]);
        break;
      case PngColours::Rgb16:
        for (int c = 0; c < 3; ++c)
          row.insert(row.end(), {pixel[c], static_cast<std::uint8_t>(~x)});
        break;
      case PngColours::Rgba:
        row.insert(row.end(), {pixel[0], pixel[1], pixel[2], static_cast<std::uint8_t>(x)});
        break;
      case PngColours::Rgb:
        row.insert(row.end(), pixel, pixel + 3);
        break;
    }
  }
  return row;
}

int png_type(PngColours colours) {
  switch (colours) {
    case PngColours::Gray:
      return PNG_COLOR_TYPE_GRAY;
    case PngColours::Palette:
      return PNG_COLOR_TYPE_PALETTE;
    case PngColours::Rgba:
      return PNG_COLOR_TYPE_RGBA;
    case PngColours::Rgb:
    case PngColours::Rgb16:
      break;
  }
  return PNG_COLOR_TYPE_RGB;
}

void append(png_structp codec, png_bytep bytes, std::size_t size) {
  auto& file = *static_cast<Bytes*>(png_get_io_ptr(codec));
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
  file.insert(file.end(), begin, begin + size);
}

}  // namespace

/// A palette maps v to (v, 255 - v, v / 2).
std::vector<std::uint8_t> stored_inks(std::span<const std::byte> file) {
  jpeg_decompress_struct codec{};
  jpeg_error_mgr errors{};
  codec.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&codec);
  jpeg_mem_src(&codec, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&codec, TRUE);
  codec.out_color_space = JCS_CMYK;
  jpeg_start_decompress(&codec);
  const std::size_t row_bytes = std::size_t{4} * codec.output_width;
  std::vector<std::uint8_t> inks(row_bytes * codec.output_height);
  while (codec.output_scanline < codec.output_height) {
    JSAMPROW rows[] = {inks.data() + row_bytes * codec.output_scanline};
    jpeg_read_scanlines(&codec, rows, 1);
  }
  jpeg_finish_decompress(&codec);
  jpeg_destroy_decompress(&codec);
  return inks;
}

Bytes encode_png(const Image& image, const PngOptions& options) {
  Bytes file;
  png_structp codec = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(codec);
  png_set_write_fn(codec, &file, append, nullptr);
  png_set_IHDR(codec, info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height),
               options.colours == PngColours::Rgb16 ? 16 : 8, png_type(options.colours),
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (options.colours == PngColours::Palette) {
    std::array<png_color, 256> palette{};
    for (std::size_t v = 0; v < palette.size(); ++v)
      palette[v] = {static_cast<png_byte>(v), static_cast<png_byte>(255 - v),
                    static_cast<png_byte>(v / 2)};
    png_set_PLTE(codec, info, palette.data(), static_cast<int>(palette.size()));
  }
  std::string key = "comment";
  std::string value(options.text_bytes, 'x');
  png_text text{};
  text.compression = PNG_TEXT_COMPRESSION_zTXt;
  text.key = key.data();
  text.text = value.data();
  text.text_length = value.size();
  const std::vector<png_text> texts(options.texts, text);
  png_set_text(codec, info, texts.data(), static_cast<int>(texts.size()));
  std::vector<std::vector<std::uint8_t>> rows;
  rows.reserve(static_cast<std::size_t>(image.height));
  for (std::int32_t y = 0; y < image.height; ++y)
    rows.push_back(png_row(image, y, options.colours));
  std::vector<png_bytep> pointers;
  pointers.reserve(rows.size());
  for (std::vector<std::uint8_t>& row : rows) pointers.push_back(row.data());
  png_set_rows(codec, info, pointers.data());
  png_write_png(codec, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&codec, &info);
  return file;
}

Bytes with_jpeg_size(Bytes file, unsigned width, unsigned height) {
  for (std::size_t i = 2; i + 9 < file.size();) {
    const auto at = [&](std::size_t place) { return std::to_integer<unsigned>(file[place]); };
    const unsigned marker = at(i + 1);
    if (marker >= 0xc0 && marker <= 0xc2) {
      const unsigned sides[] = {height, width};
      for (std::size_t side = 0; side < 2; ++side) {
        file[i + 5 + 2 * side] = static_cast<std::byte>(sides[side] >> 8);
        file[i + 6 + 2 * side] = static_cast<std::byte>(sides[side] & 255);
      }
      return file;
    }
    i += 2 + 256 * at(i + 2) + at(i + 3);
  }
  throw std::runtime_error("no frame header");
}

std::string short_digest(std::span<const std::uint8_t> bytes) {
  Sha256 sha;
  sha.update(std::as_bytes(bytes));
  return sha.hex_digest().substr(0, 16);
}

}  // namespace millrace::io
