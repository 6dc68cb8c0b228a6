// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "io/images/decoder.hpp"
#include "io/images/presets.hpp"
#include "io/images/resample.hpp"

namespace millrace::io {

/// From an encoded picture to the bytes of its window: header, window, box, decoding, resampling in
/// one go, in buffers that are used again. One per thread.
class ImageReader {
 public:
  struct Report {
    ImageWindow window;
    PictureState state = PictureState::Whole;
    std::string_view warning;  ///< valid until the reader is used again
  };

  /// Writes the training window of sample `key`, side x side x 3 bytes. Error(Data) where nothing
  /// can be decoded; a damaged picture is written as far as it goes, and the report says so.
  Report read_training(std::span<const std::byte> encoded, std::span<const ObjectBox> objects,
                       const ImagePreset& preset, const DrawKey& key, std::int32_t side,
                       std::span<std::uint8_t> image);

  /// Writes the validation window likewise.
  Report read_validation(std::span<const std::byte> encoded, const ImagePreset& preset,
                         std::int32_t side, std::span<std::uint8_t> image);

 private:
  Report read(std::span<const std::byte> encoded, const ImageWindow& window,
              const Resampling& resampling, std::int32_t side, std::span<std::uint8_t> image);

  ImageDecoder decoder_;
  Resampler resampler_;
};

}  // namespace millrace::io
