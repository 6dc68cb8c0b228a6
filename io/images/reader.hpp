// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "io/images/decoder.hpp"
#include "io/images/presets.hpp"
#include "io/images/resample.hpp"

namespace millrace::io {

/// Memory that decoding so many rows of a picture takes: their pixels, and where it is coded in
/// several passes all coefficients or pixels, of two bytes at most.
[[nodiscard]] std::int64_t decoding_bytes(const ImageHeader& header, std::int64_t rows);

/// From an encoded picture to the bytes of its window: header, window, box, decoding, resampling in
/// one go, in buffers that are used again. One per thread.
class ImageReader {
 public:
  ImageReader() = default;
  /// Readers that share `large`, which outlives them, decode pictures that take more than
  /// kUsualPictureBytes one at a time, and keep nothing of them: their memory is bounded by that
  /// number for each reader, and kMostPictureBytes for one of them.
  explicit ImageReader(std::mutex& large) : large_(&large) {}
  static constexpr std::int64_t kMostPictureBytes = 3 * kMaxImagePixels + kMaxCodecBytes;

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

  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return decoder_.buffer_bytes(); }

 private:
  Report read(std::span<const std::byte> encoded, const ImageHeader& header,
              const ImageWindow& window, const Resampling& resampling, std::int32_t side,
              std::span<std::uint8_t> image);

  std::mutex* large_ = nullptr;
  ImageDecoder decoder_;
  Resampler resampler_;
};

}  // namespace millrace::io
