// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

namespace millrace::io {

std::int64_t decoding_bytes(const ImageHeader& header, std::int64_t rows) {
  const std::int64_t whole = std::int64_t{header.width} * header.height;
  return 3 * header.width * rows + (header.progressive ? 6 * whole : 0);
}

ImageReader::Report ImageReader::read_training(std::span<const std::byte> encoded,
                                               std::span<const ObjectBox> objects,
                                               const ImagePreset& preset, const DrawKey& key,
                                               std::int32_t side, std::span<std::uint8_t> image) {
  const ImageHeader header = read_header(encoded);
  const ImageWindow window = draw_window(preset.crop, key, header, objects, side);
  return read(encoded, header, window, preset.training, side, image);
}

ImageReader::Report ImageReader::read_validation(std::span<const std::byte> encoded,
                                                 const ImagePreset& preset, std::int32_t side,
                                                 std::span<std::uint8_t> image) {
  const ImageHeader header = read_header(encoded);
  const ImageWindow window = evaluation_window(preset.evaluation, header, side);
  return read(encoded, header, window, preset.validation, side, image);
}

ImageReader::Report ImageReader::read(std::span<const std::byte> encoded, const ImageHeader& header,
                                      const ImageWindow& window, const Resampling& resampling,
                                      std::int32_t side, std::span<std::uint8_t> image) {
  const PixelBox box = resampler_.prepare(window, resampling, side);
  const bool is_large = large_ != nullptr && decoding_bytes(header, box.bottom - box.top) >
                                                 static_cast<std::int64_t>(kUsualPictureBytes);
  const auto alone = is_large ? std::unique_lock(*large_) : std::unique_lock<std::mutex>();
  const DecodedImage decoded = decoder_.decode(encoded, box);
  resampler_.resample(decoded.view, image);
  if (is_large) decoder_.release();
  return {.window = window, .state = decoded.state, .warning = decoded.warning};
}

}  // namespace millrace::io
