// SPDX-License-Identifier: Apache-2.0
//
// Resampling of RGB bytes. Every pixel of the result is a weighted sum of the pixels around its
// position in the source, with separate weights for columns and rows. Filters differ in this
// position and in the pixels that they use. If `in` pixels are scaled to `out`, pixel x is at
// position
//
//   legacy      x in / out                    TensorFlow 1: shifts the image up and left
//   half-pixel  (x + 1/2) in / out - 1/2      aligns the centers of pixels
//
//   bilinear     the two nearest pixels by distance (of at most 1)
//   bicubic      the four nearest by Keys' cubic (a = -1/2); its legacy form takes a = -3/4 and
//                distances in steps of 1/1024, as TensorFlow's table does
//   antialiased  the same curves, stretched by in / out if the image shrinks, so that every
//                source pixel is used
//
// Beyond the border, legacy forms repeat the last pixel; the others use only existing pixels and
// renormalize their weights. Antialiased forms are bit-identical to Pillow's resize: weights of 22
// bits, columns first, bytes in between. The others sum in float32 and round once.
//
// Keys, "Cubic convolution interpolation for digital image processing", IEEE Trans. ASSP 29 (1981).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/image_records.hpp"
#include "io/images/header.hpp"
#include "io/images/wide_rows.hpp"

namespace millrace::io {

enum class Filter : std::uint8_t {
  BilinearLegacy,
  Bilinear,
  BicubicLegacy,
  Bicubic,
  BilinearAntialiased,
  BicubicAntialiased,
};

/// Fraction bits of a fixed-point weight: 32 minus 8 for the pixel and 2 for sign and overshoot.
inline constexpr int kFixedBits = 32 - 8 - 2;

/// Whether the source is mirrored before resampling, or the result after it. The two differ for
/// legacy forms.
enum class MirrorStage : std::uint8_t { Before, After };

struct Resampling {
  Filter filter = Filter::BilinearLegacy;
  MirrorStage mirror = MirrorStage::Before;
  friend bool operator==(const Resampling&, const Resampling&) = default;
};

/// For each of `size()` results along one axis: the source pixels first .. first + taps - 1 and
/// their weights, which sum to 1.
struct AxisWeights {
  std::int32_t taps = 0;
  std::vector<std::int32_t> first;  ///< one per result
  std::vector<float> weight;        ///< `taps` per result
  std::vector<std::int32_t> fixed;  ///< the same x 2^22, for antialiased filters
  std::int32_t begin = 0;           ///< first source pixel used
  std::int32_t end = 0;             ///< one past the last
  [[nodiscard]] std::size_t size() const noexcept { return first.size(); }
};

/// Resamples, with tables and buffers that are reused from image to image. One per thread.
class Resampler {
 public:
  /// Prepares to resample `window` to side x side pixels; returns the box of the image that this
  /// needs.
  PixelBox prepare(const ImageWindow& window, const Resampling& resampling, std::int32_t side) {
    return prepare(window, resampling, side, side);
  }
  /// The same for a window that is not square.
  PixelBox prepare(const ImageWindow& window, const Resampling& resampling, std::int32_t width,
                   std::int32_t height);

  /// Writes the prepared window, height x width x 3 bytes. `source` must contain the box that
  /// prepare() returned.
  void resample(const PixelView& source, std::span<std::uint8_t> image);

 private:
  void resample_float(const PixelView& source, std::uint8_t* image);
  void resample_fixed(const PixelView& source, std::uint8_t* image);

  Filter filter_ = Filter::BilinearLegacy;
  AxisWeights columns_;
  AxisWeights rows_;
  WideColumns<float> float_columns_;
  WideColumns<std::int32_t> fixed_columns_;
  std::vector<const std::uint8_t*> row_pointers_;  ///< of the taps of a result row
  std::vector<float> float_row_;                   ///< a row of source columns
  std::vector<float> float_result_;                ///< a row of the result
  std::vector<std::int32_t> fixed_row_;            ///< as float_row_
  std::vector<std::int32_t> fixed_result_;
  std::vector<std::uint8_t> narrow_rows_;  ///< all used rows, at the result's width
};

}  // namespace millrace::io
