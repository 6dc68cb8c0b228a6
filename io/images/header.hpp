// SPDX-License-Identifier: Apache-2.0
//
// io/images: converts the bytes of a JPEG or PNG file to the square of pixels that a network reads.
//
//   file --ImageDecoder::open--> size -> draw_window / evaluation_window -> window
//     --Resampler::prepare--> box --ImageDecoder::decode--> RGB bytes of the box
//     --Resampler::resample--> S x S x 3 bytes
//
// ImageReader (reader.hpp) does all of this. The header of a file is parsed once.
//
// A *window* describes a crop: which box of the image is scaled to which size, which part of the
// result is cropped, and whether it is mirrored. Training draws it with a rule
// (presets.hpp), a pure function of (seed, epoch, index); validation computes it from the size. A
// *preset* (presets.hpp) is one row of a table: rule, filter, evaluation, normalization.
//
// Only the *box* of the image that the window needs is decoded: rows above are skipped, rows below
// are not read, and columns beside it skip the inverse transform. The decoded pixels are
// bit-identical to those of the whole image. The scaling of libjpeg (to 1/2, 1/4, 1/8) is not used:
// its pixels are averages and differ by several levels from the filters here, with which the
// recipes were tuned.
//
// Resampling gives bytes, rounded to nearest, so that normalization on the host and on a device
// gives the same tensor. EXIF orientation is ignored, as in all supported recipes: ImageNet's boxes
// and labels refer to the pixels as stored.
//
// Sizes are checked before memory is allocated. Errors in a file are Error(Data); the message does
// not name the file, which only the caller knows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/image_format.hpp"
#include "core/image_records.hpp"

namespace millrace::io {

/// Color space of a file. Colors are decoded to RGB: gray is repeated, and for CMYK and YCCK
///   channel = (255 - ink) x (255 - black) / 255, rounded to nearest;
/// files with Adobe's marker store 255 - ink instead of ink. For PNG, palettes are expanded,
/// transparency is dropped, 16 bits are truncated to 8, and gamma is ignored.
enum class ColourSpace : std::uint8_t { Gray, Rgb, YCbCr, Cmyk, Ycck, Palette };

/// Properties of an image from the first bytes of its file.
struct ImageHeader {
  ImageFormat format = ImageFormat::Other;
  std::int32_t width = 0;   ///< pixels
  std::int32_t height = 0;  ///< pixels
  ColourSpace colours = ColourSpace::Rgb;
  /// Coded in several passes (progressive JPEG, interlaced PNG): parts cannot be decoded alone, and
  /// memory for the whole image is needed.
  bool progressive = false;
  friend bool operator==(const ImageHeader&, const ImageHeader&) = default;
};

/// Maximum memory for the coefficients of an image coded in several passes.
inline constexpr std::int64_t kMaxCodecBytes = std::int64_t{96} << 20;
/// Maximum passes of a progressive JPEG, and maximum pixels of all passes together.
inline constexpr int kMaxScans = 100;
inline constexpr std::int64_t kMaxScanPixels = std::int64_t{3} << 27;

struct ImageSize {
  std::int32_t height = 0;
  std::int32_t width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

enum class Mirror : std::uint8_t { No, Yes };

/// The part of an image that a network reads:
///
///   image              box of it            scaled                  window: side x side
///   +------------+     +-------+            +-------------+         +-------+
///   |   +-----+  |     |       |  resample  |   +-----+   |   cut   |       |
///   |   |     |  | --> |       | ---------> |   |     |   |  -----> |       |  (mirrored or not)
///   |   +-----+  |     +-------+            |   +-----+   |         +-------+
///   +------------+                          +-------------+
///
/// In training the box is drawn at random and the window is the whole scaled box. In validation the
/// box is the whole image and the window is the center of the scaled image.
struct ImageWindow {
  PixelBox box;                    ///< part of the image, in its pixels
  std::int32_t scaled_width = 0;   ///< width of the resampled box
  std::int32_t scaled_height = 0;  ///< height of the resampled box
  std::int32_t left = 0;           ///< of the window within the resampled box
  std::int32_t top = 0;            ///< of the window within the resampled box
  Mirror mirror = Mirror::No;
  friend bool operator==(const ImageWindow&, const ImageWindow&) = default;
};

/// RGB bytes of a box of an image, three per pixel, rows `stride` bytes apart, in the memory of
/// someone else.
struct PixelView {
  const std::uint8_t* pixels = nullptr;  ///< upper left corner of the box
  std::int64_t stride = 0;               ///< bytes
  PixelBox box;                          ///< position within the image
  [[nodiscard]] std::int32_t width() const noexcept { return box.right - box.left; }
  [[nodiscard]] std::int32_t height() const noexcept { return box.bottom - box.top; }
  /// Pixel (x, y) of the image, followed by the rest of the box's row.
  [[nodiscard]] const std::uint8_t* at(std::int32_t x, std::int32_t y) const noexcept {
    return pixels + (y - box.top) * stride + std::int64_t{3} * (x - box.left);
  }
};

/// Result of decoding. Damaged: some pixels are wrong because data is missing or corrupt. Defects
/// that do not affect pixels (no end marker, bytes between segments) only cause a warning.
enum class ImageState : std::uint8_t { Whole, Damaged };

/// Maximum pixel bytes of usual photos: 8 Mi pixels. Buffers of larger images are not kept.
inline constexpr std::size_t kUsualImageBytes = std::size_t{24} << 20;

/// Sample and epoch. A draw depends on nothing else.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
};

}  // namespace millrace::io
