// SPDX-License-Identifier: Apache-2.0
//
// Reads JPEG and PNG files: decoding of them or of boxes of them, and of the windows that networks
// read. Only jpeg.cpp, png.cpp and the tools' encoder use names of libjpeg and libpng.
#pragma once

#include <algorithm>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/image_format.hpp"
#include "io/images/header.hpp"
#include "io/images/presets.hpp"
#include "io/images/resample.hpp"

namespace millrace::io {

/// A file whose header has been read. The file's bytes must outlive it.
class ImageCodec {
 public:
  virtual ~ImageCodec() = default;
  [[nodiscard]] const ImageHeader& header() const noexcept { return header_; }
  /// Decodes `box` (not empty, within the image) into `pixels`, which grows as needed. Called at
  /// most once. Error(Data) if nothing can be decoded.
  virtual PixelView decode(const PixelBox& box, std::vector<std::uint8_t>& pixels) = 0;
  /// Reads from the last decoded row to the end of the file. Error(Data).
  virtual void finish() = 0;
  [[nodiscard]] virtual ImageState state() const noexcept { return ImageState::Whole; }
  /// The first warning, or "".
  [[nodiscard]] virtual const char* warning() const noexcept = 0;

 protected:
  ImageHeader header_;
};

/// Reads the header. Error(Data): damage before the pixels, an unsupported kind (lossless, 12 bits,
/// two channels), or a limit exceeded.
[[nodiscard]] std::unique_ptr<ImageCodec> open_jpeg(std::span<const std::byte> encoded);
[[nodiscard]] std::unique_ptr<ImageCodec> open_png(std::span<const std::byte> encoded);

/// Error(Data), with the limit, if an image of this size exceeds one.
inline void check_image_size(std::int64_t width, std::int64_t height) {
  if (width < 1 || height < 1)
    fail(ErrorKind::Data, "an image of {} x {} pixels is empty", width, height);
  if (width > kMaxImageSide || height > kMaxImageSide)
    fail(ErrorKind::Data, "an image of {} x {} pixels; the limit is {} per side", width, height,
         kMaxImageSide);
  if (width * height > kMaxImagePixels)
    fail(ErrorKind::Data, "an image of {} x {} pixels; the limit is {} pixels", width, height,
         kMaxImagePixels);
}

/// Resizes `pixels` to at least `bytes`; its content is lost. Memory of unusually large images is
/// freed, so that not every thread keeps a buffer of that size.
inline void make_room(std::vector<std::uint8_t>& pixels, std::size_t bytes) {
  if (pixels.size() >= bytes && pixels.size() <= std::max(bytes, kUsualImageBytes)) return;
  pixels = std::vector<std::uint8_t>();
  pixels.resize(bytes);
}

struct DecodedImage {
  PixelView view;
  ImageState state = ImageState::Whole;
  std::string_view warning;  ///< the first warning, or empty
};

/// Reads the header of a JPEG or PNG. Error(Data): another format, damage before the pixels, an
/// unsupported kind (lossless, 12 bits, two channels), or a limit exceeded.
[[nodiscard]] ImageHeader read_header(std::span<const std::byte> encoded);

/// Decodes images, or boxes of them, into one reused buffer. No other state is kept, so the result
/// does not depend on earlier images. One per thread; results are valid until the next call.
class ImageDecoder {
 public:
  /// Reads the header of a file, which decode() then continues; the bytes must stay until then.
  /// Errors: as read_header.
  const ImageHeader& open(std::span<const std::byte> encoded);

  /// Decodes the opened image up to and including the file's end. Error(Data) if nothing can be
  /// decoded. A damaged JPEG is decoded as far as possible, with missing pixels gray.
  DecodedImage decode();
  /// Decodes only the pixels of `box` (not empty, within the image); they equal those of the whole
  /// image. Data after the box is not read, so damage there is not detected.
  DecodedImage decode(const PixelBox& box);

  /// Frees the buffer.
  void release() noexcept { pixels_ = std::vector<std::uint8_t>(); }
  /// Size of the buffer: bytes of the largest box so far, or, if that was larger than usual photos,
  /// of the last box.
  [[nodiscard]] std::size_t buffer_bytes() const noexcept { return pixels_.capacity(); }

 private:
  DecodedImage decode(const PixelBox& box, bool to_the_end);

  std::unique_ptr<ImageCodec> codec_;  ///< of the opened file
  std::vector<std::uint8_t> pixels_;
  std::string warning_;
};

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
