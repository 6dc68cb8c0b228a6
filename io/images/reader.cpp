// SPDX-License-Identifier: Apache-2.0
#include "io/images/reader.hpp"

namespace millrace::io {

ImageReader::Report ImageReader::read_training(std::span<const std::byte> encoded,
                                               std::span<const ObjectBox> objects,
                                               const ImagePreset& preset, const DrawKey& key,
                                               std::int32_t side, std::span<std::uint8_t> image) {
  const ImageWindow window = draw_window(preset.crop, key, read_header(encoded), objects, side);
  return read(encoded, window, preset.training, side, image);
}

ImageReader::Report ImageReader::read_validation(std::span<const std::byte> encoded,
                                                 const ImagePreset& preset, std::int32_t side,
                                                 std::span<std::uint8_t> image) {
  const ImageWindow window = evaluation_window(preset.evaluation, read_header(encoded), side);
  return read(encoded, window, preset.validation, side, image);
}

ImageReader::Report ImageReader::read(std::span<const std::byte> encoded, const ImageWindow& window,
                                      const Resampling& resampling, std::int32_t side,
                                      std::span<std::uint8_t> image) {
  const PixelBox box = resampler_.prepare(window, resampling, side);
  const DecodedImage decoded = decoder_.decode(encoded, box);
  resampler_.resample(decoded.view, image);
  return {.window = window, .state = decoded.state, .warning = decoded.warning};
}

}  // namespace millrace::io
