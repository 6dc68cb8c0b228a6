// SPDX-License-Identifier: Apache-2.0
//
// io/images: from the bytes of a JPEG or PNG file to the square of pixels that a network reads.
//
//   encoded bytes --read_header--> size --draw_window / evaluation_window--> window
//     --source_box--> box --ImageDecoder--> RGB bytes of the box --Resampler--> S x S x 3 bytes
//     --normalise_pixels--> float32 or bfloat16
//
// A *window* (window.hpp) says in numbers what to make of a picture: which box of it is scaled to
// which size, what part of that is cut out, and whether it is mirrored. Training draws it from a
// rule (crop_rule.hpp), a pure function of (seed, epoch, index); validation computes it from the
// size. A *preset* (presets.hpp) is one line of a table: rule, filter, evaluation, normalisation.
//
// Only the *box* of the picture that the window needs is decoded: rows above are skipped over,
// those below are never looked at, and columns beside it are left out from the inverse transform
// on. What is decoded is, bit for bit, what decoding everything gives. The transform's own scaling
// (to 1/2, 1/4, 1/8) is not used: its pixels are averages and lie several levels off those of the
// filters here, which the recipes were tuned with.
//
// The result of resampling is bytes, rounded to nearest, so that normalising on the host and on a
// device gives the same tensor. An orientation stored in EXIF is ignored, as all recipes taken over
// here do: ImageNet's boxes and labels belong to the pixels as stored.
//
// Sizes are checked before memory is taken. What is wrong with a file ends in Error(Data); its
// message does not name the file, which only the caller knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/image_format.hpp"

namespace millrace::io {

/// How a file stores colours. They are decoded as RGB: gray is repeated, and of CMYK and YCCK
///   channel = (255 - ink) x (255 - black) / 255, rounded to nearest;
/// files with Adobe's marker store 255 - ink instead of ink. A PNG's palette is looked up, its
/// transparency dropped, 16 bits are cut to 8, and its gamma is ignored.
enum class ColourSpace : std::uint8_t { Gray, Rgb, YCbCr, Cmyk, Ycck, Palette };

/// What the first bytes of a file say about the picture in it.
struct ImageHeader {
  ImageFormat format = ImageFormat::Other;
  std::int32_t width = 0;   ///< pixels
  std::int32_t height = 0;  ///< pixels
  ColourSpace colours = ColourSpace::Rgb;
  /// Coded in several passes over the picture (a progressive JPEG, an interlaced PNG): there is no
  /// decoding of a part alone, and memory for the whole picture is needed.
  bool progressive = false;
  friend bool operator==(const ImageHeader&, const ImageHeader&) = default;
};

/// Memory for the coefficients of a picture that is coded in several passes.
inline constexpr std::int64_t kMaxCodecBytes = std::int64_t{96} << 20;
/// Passes that a progressive JPEG may make, and pixels that all of them together may visit.
inline constexpr int kMaxScans = 100;
inline constexpr std::int64_t kMaxScanPixels = std::int64_t{3} << 27;

/// Reads the header of a JPEG or PNG. Error(Data): neither of them, damaged before the pixels
/// begin, of a kind that is not decoded (lossless, 12 bits, two channels), or beyond a limit.
[[nodiscard]] ImageHeader read_header(std::span<const std::byte> encoded);

/// Error(Data) names the limit that a picture of this size exceeds.
void check_image_size(std::int64_t width, std::int64_t height);

}  // namespace millrace::io
