// SPDX-License-Identifier: Apache-2.0
#include "cli/picture_codec.hpp"

#include <string_view>

#include "core/error.hpp"
#include "io/images/decoder.hpp"
#include "io/images/encoder.hpp"
#include "io/images/header.hpp"
#include "io/images/resample.hpp"

namespace millrace::cli {
namespace {

/// As in the recipes' preparation steps for files that are not RGB JPEGs.
constexpr int kQuality = 100;

/// Decodes the whole image, because damage outside of a crop counts too.
io::DecodedImage decode_whole(io::ImageDecoder& decoder, std::span<const std::byte> file) {
  io::DecodedImage image = decoder.decode(file);
  if (image.state == io::PictureState::Damaged) fail(ErrorKind::Data, "{}", image.warning);
  return image;
}

bool is_plain_jpeg(const io::ImageHeader& header) {
  return header.format == ImageFormat::Jpeg && header.colours != io::ColourSpace::Cmyk &&
         header.colours != io::ColourSpace::Ycck;
}

}  // namespace

std::string picture_problem(std::span<const std::byte> file) {
  try {
    io::ImageDecoder decoder;
    (void)decode_whole(decoder, file);
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data) throw;
    return error.what();
  }
}

std::optional<io::PictureSize> picture_size(std::span<const std::byte> file) {
  try {
    const io::ImageHeader header = io::read_header(file);
    return io::PictureSize{.height = header.height, .width = header.width};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Data) throw;
    return std::nullopt;
  }
}

io::PreparedPicture prepare_picture(std::span<const std::byte> file) {
  const io::ImageHeader header = io::read_header(file);
  io::PreparedPicture prepared{.height = header.height, .width = header.width, .replacement = {}};
  io::ImageDecoder decoder;
  const io::DecodedImage image = decode_whole(decoder, file);
  if (!is_plain_jpeg(header)) prepared.replacement = io::encode_rgb_jpeg(image.view, kQuality);
  return prepared;
}

void shrink_picture(std::span<const std::byte> file, std::int32_t shorter_side,
                    io::PixelBuffer& out) {
  thread_local io::ImageDecoder decoder;
  thread_local io::Resampler resampler;
  // Checked before memory is allocated for either image.
  const io::ImageHeader header = io::read_header(file);
  const io::PackedSize size = io::packed_size(header.height, header.width, shorter_side);
  const io::PixelView view = decode_whole(decoder, file).view;
  out.width = size.width;
  out.height = size.height;
  const io::ImageWindow window{
      .box = view.box, .scaled_width = out.width, .scaled_height = out.height, .left = 0, .top = 0};
  (void)resampler.prepare(window, {.filter = io::Filter::BilinearAntialiased}, out.width,
                          out.height);
  out.pixels.resize(std::size_t{3} * static_cast<std::size_t>(out.width) *
                    static_cast<std::size_t>(out.height));
  // Any object may be accessed as bytes.
  resampler.resample(view, {reinterpret_cast<std::uint8_t*>(out.pixels.data()), out.pixels.size()});
}

}  // namespace millrace::cli
