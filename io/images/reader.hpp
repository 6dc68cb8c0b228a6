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

/// Memory for decoding `rows` rows of an image: their pixels, and, if it is coded in several
/// passes, all coefficients or pixels with at most two bytes each.
[[nodiscard]] std::int64_t decoding_bytes(const ImageHeader& header, std::int64_t rows);

/// Reads the window of an encoded image: header, window, box, decoding and resampling, in reused
/// buffers. One per thread.
class ImageReader {
 public:
  ImageReader() = default;
  /// Readers that share `large`, which must outlive them, decode images of more than
  /// kUsualPictureBytes one at a time and free their memory. So memory is bounded by
  /// kUsualPictureBytes per reader plus kMostPictureBytes for one of them.
  explicit ImageReader(std::mutex& large) : large_(&large) {}
  static constexpr std::int64_t kMostPictureBytes = 3 * kMaxImagePixels + kMaxCodecBytes;

  struct Report {
    ImageWindow window;
    PictureState state = PictureState::Whole;
    std::string_view warning;  ///< valid until the next call
  };

  /// Writes the training window of sample `key`, side x side x 3 bytes. Error(Data) if nothing can
  /// be decoded. A damaged image is written as far as possible, and the report says so.
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
