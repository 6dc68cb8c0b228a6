// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include "core/object_box.hpp"
#include "io/images/decoder.hpp"
#include "io/images/presets.hpp"
#include "io/images/resample.hpp"

namespace millrace::io {

/// An image as it is stored: a JPEG or PNG file, or, if it has a size, rows of RGB pixels. Its
/// boxes are those of its objects, if known.
struct StoredImage {
  std::span<const std::byte> bytes = {};
  std::span<const ObjectBox> boxes = {};
  std::int32_t height = 0;  ///< 0: a file
  std::int32_t width = 0;   ///< 0: a file
  [[nodiscard]] bool is_file() const noexcept { return width == 0; }
};

/// Memory for decoding `rows` rows of an image: their pixels, and, if it is coded in several
/// passes, all coefficients or pixels with at most two bytes each.
[[nodiscard]] std::int64_t decoding_bytes(const ImageHeader& header, std::int64_t rows);

/// Reads the window of a stored image: header, window, box, decoding and resampling, in reused
/// buffers. One per thread.
class ImageReader {
 public:
  ImageReader() = default;
  /// Readers that share `large`, which must outlive them, decode images of more than
  /// kUsualImageBytes one at a time and free their memory. So memory is bounded by kUsualImageBytes
  /// per reader plus kMostImageBytes for one of them.
  explicit ImageReader(std::mutex& large) : large_(&large) {}
  static constexpr std::int64_t kMostImageBytes = 3 * kMaxImagePixels + kMaxCodecBytes;

  struct Report {
    ImageWindow window;
    ImageState state = ImageState::Whole;
    std::string_view warning;  ///< valid until the next call
  };

  /// Writes the training window of sample `key`, or without a key the validation window, as side x
  /// side x 3 bytes. Error(Data) if nothing can be decoded. A damaged image is written as far as
  /// possible, and the report says so.
  Report read(const StoredImage& stored, const ImagePreset& preset,
              const std::optional<DrawKey>& key, std::int32_t side, std::span<std::uint8_t> image);

  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return decoder_.buffer_bytes(); }

 private:
  std::mutex* large_ = nullptr;
  ImageDecoder decoder_;
  Resampler resampler_;
};

}  // namespace millrace::io
