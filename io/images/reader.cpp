// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::io {
namespace {

std::unique_ptr<ImageCodec> open_codec(std::span<const std::byte> encoded) {
  switch (format_of(encoded)) {
    case ImageFormat::Jpeg:
      return open_jpeg(encoded);
    case ImageFormat::Png:
      return open_png(encoded);
    case ImageFormat::Other:
      break;
  }
  if (encoded.empty()) fail(ErrorKind::Data, "neither a JPEG nor a PNG: it is empty");
  std::string bytes;
  for (const std::byte byte : encoded.first(std::min<std::size_t>(encoded.size(), 4)))
    bytes += fmt::format(" {:02x}", std::to_integer<unsigned>(byte));
  fail(ErrorKind::Data, "neither a JPEG nor a PNG: it begins with the bytes{}", bytes);
}

PixelView view_of(const StoredImage& pixels) {
  // Bytes may be accessed as any byte type.
  return {.pixels = reinterpret_cast<const std::uint8_t*>(pixels.bytes.data()),
          .stride = std::int64_t{3} * pixels.width,
          .box = {.bottom = pixels.height, .right = pixels.width}};
}

}  // namespace

ImageHeader read_header(std::span<const std::byte> encoded) {
  return open_codec(encoded)->header();
}

const ImageHeader& ImageDecoder::open(std::span<const std::byte> encoded) {
  codec_ = open_codec(encoded);
  return codec_->header();
}

DecodedImage ImageDecoder::decode() {
  MILLRACE_ASSERT(codec_ != nullptr);
  const ImageHeader& header = codec_->header();
  return decode({.bottom = header.height, .right = header.width}, true);
}

DecodedImage ImageDecoder::decode(const PixelBox& box) { return decode(box, false); }

DecodedImage ImageDecoder::decode(const PixelBox& box, bool to_the_end) {
  // Closed in any case: it may hold the memory of a whole image.
  const std::unique_ptr<ImageCodec> codec = std::move(codec_);
  MILLRACE_ASSERT(codec != nullptr);
  const ImageHeader& header = codec->header();
  MILLRACE_ASSERT(box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom &&
                  box.right <= header.width && box.bottom <= header.height);
  const PixelView view = codec->decode(box, pixels_);
  if (to_the_end) codec->finish();
  warning_ = codec->warning();
  return {.view = view, .state = codec->state(), .warning = warning_};
}

std::int64_t decoding_bytes(const ImageHeader& header, std::int64_t rows) {
  const std::int64_t whole = std::int64_t{header.width} * header.height;
  return 3 * header.width * rows + (header.progressive ? 6 * whole : 0);
}

ImageReader::Report ImageReader::read(const StoredImage& stored, const ImagePreset& preset,
                                      const std::optional<DrawKey>& key, std::int32_t side,
                                      std::span<std::uint8_t> image) {
  const ImageHeader header = stored.is_file()
                                 ? decoder_.open(stored.bytes)
                                 : ImageHeader{.width = stored.width, .height = stored.height};
  const ImageWindow window = key ? draw_window(preset.crop, *key, header, stored.boxes, side)
                                 : evaluation_window(preset.evaluation, header, side);
  const PixelBox box = resampler_.prepare(window, key ? preset.training : preset.validation, side);
  if (!stored.is_file()) {
    resampler_.resample(view_of(stored), image);
    return {.window = window, .state = ImageState::Whole, .warning = {}};
  }
  const bool is_large = large_ != nullptr && decoding_bytes(header, box.bottom - box.top) >
                                                 static_cast<std::int64_t>(kUsualImageBytes);
  const auto alone = is_large ? std::unique_lock(*large_) : std::unique_lock<std::mutex>();
  const DecodedImage decoded = decoder_.decode(box);
  resampler_.resample(decoded.view, image);
  if (is_large) decoder_.release();
  return {.window = window, .state = decoded.state, .warning = decoded.warning};
}

}  // namespace millrace::io
