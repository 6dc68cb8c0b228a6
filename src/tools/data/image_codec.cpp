// SPDX-License-Identifier: Apache-2.0
#include "tools/data/image_codec.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "io/data/packed_images.hpp"
#include "io/images/reader.hpp"
#include "io/images/resample.hpp"

namespace millrace::io {
namespace {

/// As in the recipes' preparation steps for files that are not RGB JPEGs.
constexpr int kQuality = 100;

/// Decodes the whole image, because damage outside of a crop counts too.
DecodedImage decode_whole(ImageDecoder& decoder) {
  DecodedImage image = decoder.decode();
  if (image.state == ImageState::Damaged) fail(ErrorKind::Data, "{}", image.warning);
  return image;
}

bool is_plain_jpeg(const ImageHeader& header) {
  return header.format == ImageFormat::Jpeg && header.colours != ColourSpace::Cmyk &&
         header.colours != ColourSpace::Ycck;
}

}  // namespace

std::string image_problem(std::span<const std::byte> file) {
  try {
    ImageDecoder decoder;
    decoder.open(file);
    (void)decode_whole(decoder);
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data) throw;
    return error.what();
  }
}

std::optional<ImageSize> measure_image(std::span<const std::byte> file) {
  try {
    const ImageHeader header = read_header(file);
    return ImageSize{.height = header.height, .width = header.width};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data) throw;
    return std::nullopt;
  }
}

PreparedImage prepare_image(std::span<const std::byte> file) {
  ImageDecoder decoder;
  const ImageHeader header = decoder.open(file);
  PreparedImage prepared{.height = header.height, .width = header.width, .replacement = {}};
  const DecodedImage image = decode_whole(decoder);
  if (!is_plain_jpeg(header)) prepared.replacement = encode_rgb_jpeg(image.view, kQuality);
  return prepared;
}

void shrink_image(std::span<const std::byte> file, std::int32_t shorter_side, PixelBuffer& out) {
  thread_local ImageDecoder decoder;
  thread_local Resampler resampler;
  // Checked before memory is allocated for either image.
  const ImageHeader header = decoder.open(file);
  const ImageSize size = packed_size(header.height, header.width, shorter_side);
  const PixelView view = decode_whole(decoder).view;
  out.width = size.width;
  out.height = size.height;
  const ImageWindow window{
      .box = view.box, .scaled_width = out.width, .scaled_height = out.height, .left = 0, .top = 0};
  (void)resampler.prepare(window, {.filter = Filter::BilinearAntialiased}, out.width, out.height);
  out.pixels.resize(std::size_t{3} * static_cast<std::size_t>(out.width) *
                    static_cast<std::size_t>(out.height));
  // Any object may be accessed as bytes.
  resampler.resample(view, {reinterpret_cast<std::uint8_t*>(out.pixels.data()), out.pixels.size()});
}

void check_packed_size(std::int64_t height, std::int64_t width) {
  if (!packed::is_size(height, width))
    fail(ErrorKind::Data, "{} x {} pixels when packed; the limits are {} per side and {} in total",
         height, width, kMaxImageSide, kMaxImagePixels);
}

ImageSize packed_size(std::int32_t height, std::int32_t width, std::int32_t shorter_side) {
  const std::int64_t shorter = std::min(height, width);
  MILLRACE_ASSERT(shorter >= 1 && shorter_side >= 1);
  const std::int64_t packed_height = std::int64_t{height} * shorter_side / shorter;
  const std::int64_t packed_width = std::int64_t{width} * shorter_side / shorter;
  check_packed_size(packed_height, packed_width);
  return {.height = static_cast<std::int32_t>(packed_height),
          .width = static_cast<std::int32_t>(packed_width)};
}

}  // namespace millrace::io
