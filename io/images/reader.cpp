// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

namespace millrace::io {
namespace {

PixelView view_of(const StoredImage& pixels) {
  // Bytes may be accessed as any byte type.
  return {.pixels = reinterpret_cast<const std::uint8_t*>(pixels.bytes.data()),
          .stride = std::int64_t{3} * pixels.width,
          .box = {.bottom = pixels.height, .right = pixels.width}};
}

}  // namespace

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
