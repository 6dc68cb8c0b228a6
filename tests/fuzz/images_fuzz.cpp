// SPDX-License-Identifier: Apache-2.0
//
// JPEG and PNG: header, whole image, a box of it, and everything that a loader does with an image.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "io/images/reader.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/io/images/test_images.hpp"

namespace millrace::fuzz {
namespace {

using namespace io;

/// Of larger images only the header is read, so that thousands of inputs take seconds.
constexpr std::int64_t kMaxPixels = 256 * 256;
constexpr std::int32_t kSide = 16;

/// A box within the image that depends on the input.
PixelBox box_in(const ImageHeader& header, std::size_t number) {
  const auto pick = [&number](std::int32_t from, std::int32_t to) {
    const auto range = static_cast<std::size_t>(to - from);
    const auto picked = from + static_cast<std::int32_t>(number % range);
    number = number / range + number * 31 % 1009;
    return picked;
  };
  const std::int32_t top = pick(0, header.height);
  const std::int32_t left = pick(0, header.width);
  return {top, left, pick(top, header.height) + 1, pick(left, header.width) + 1};
}

void check_box_agrees(std::span<const std::byte> input, const ImageHeader& header,
                      const DecodedImage& whole, std::size_t number) {
  const PixelBox box = box_in(header, number);
  ImageDecoder decoder;
  const DecodedImage part = decode(decoder, input, box);
  if (whole.state == ImageState::Damaged || part.state == ImageState::Damaged) return;
  for (std::int32_t y = box.top; y < box.bottom; ++y)
    require(std::memcmp(part.view.at(box.left, y), whole.view.at(box.left, y),
                        std::size_t{3} * static_cast<std::size_t>(part.view.width())) == 0,
            "a box is a part of the whole image");
}

void decode_all(std::span<const std::byte> input, const ImageHeader& header, std::size_t number) {
  ImageDecoder decoder;
  const DecodedImage whole = decode(decoder, input);
  require(whole.view.width() == header.width && whole.view.height() == header.height,
          "an image has the size of its header");
  // CMYK takes four bytes per pixel.
  require(decoder.buffer_bytes() <= std::size_t{4} * kMaxPixels, "memory is limited");
  check_box_agrees(input, header, whole, number);
}

void load(std::span<const std::byte> input, std::size_t number) {
  const auto presets = image_presets();
  ImageReader reader;
  std::vector<std::uint8_t> image(std::size_t{3} * kSide * kSide);
  const DrawKey key{.seed = 1, .epoch = 0, .index = number};
  const ImagePreset& preset = presets[number % presets.size()];
  reader.read({.bytes = input}, preset, key, kSide, image);
  reader.read({.bytes = input}, preset, {}, kSide, image);
}

}  // namespace

void run_one(std::span<const std::byte> input) {
  const std::size_t number = std::accumulate(
      input.begin(), input.end(), input.size(), [](std::size_t sum, std::byte byte) {
        return (sum * 31 + std::to_integer<std::size_t>(byte)) % 1000003;
      });
  fails_only_as(ErrorKind::Data, [&] {
    const ImageHeader header = read_header(input);
    if (std::int64_t{header.width} * header.height > kMaxPixels) return;
    decode_all(input, header, number);
    load(input, number);
  });
}

std::vector<Bytes> seeds() {
  const Image image = make_image(33, 21);
  std::vector<Bytes> files = {
      encode_jpeg(make_image(1, 1)),
      encode_jpeg(image),
      encode_jpeg(image, {.horizontal = 2}),
      encode_jpeg(image, {.horizontal = 2, .vertical = 2}),
      encode_jpeg(image, {.vertical = 2}),
      encode_jpeg(image, {.horizontal = 2, .vertical = 2, .progressive = true}),
      encode_jpeg(image, {.horizontal = 2, .vertical = 2, .restart_rows = 1}),
      encode_jpeg(image, {.progressive = true, .colours = JpegColours::Gray}),
      encode_jpeg(image, {.colours = JpegColours::Rgb}),
      encode_jpeg(image, {.colours = JpegColours::Cmyk}),
      encode_jpeg(image, {.colours = JpegColours::Ycck})};
  for (const bool interlaced : {false, true})
    for (const PngColours colours : {PngColours::Rgb, PngColours::Rgba, PngColours::Gray,
                                     PngColours::Palette, PngColours::Rgb16})
      files.push_back(encode_png(image, {.colours = colours, .interlaced = interlaced}));
  return files;
}

}  // namespace millrace::fuzz
