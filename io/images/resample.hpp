// SPDX-License-Identifier: Apache-2.0
//
// Resampling of RGB bytes: every pixel of the result is a weighted sum of the pixels around its
// place in the source, columns and rows weighted separately. What tells the filters apart is where
// that place is and which pixels count. For a side of `in` pixels scaled to `out`, pixel x lies at
//
//   legacy      x in / out                    TensorFlow 1: the picture creeps up and left
//   half-pixel  (x + 1/2) in / out - 1/2      centres of pixels on centres of pixels
//
//   bilinear     the two nearest pixels by distance (of at most 1)
//   bicubic      the four nearest by Keys' cubic (a = -1/2); its legacy form takes a = -3/4 and
//                distances in steps of 1/1024, as TensorFlow's table does
//   antialiased  the same curves, stretched by in / out where the picture shrinks, so that every
//                source pixel counts
//
// Beyond the border, legacy forms repeat the last pixel; the others leave out what is not there and
// weigh the rest. Antialiased forms compute as Pillow's resize does, to the last bit: weights of 22
// bits, columns first, bytes in between. The others sum in float32 and round once.
//
// Keys, "Cubic convolution interpolation for digital image processing", IEEE Trans. ASSP 29 (1981).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/image_records.hpp"
#include "io/images/decoder.hpp"
#include "io/images/window.hpp"

namespace millrace::io {

enum class Filter : std::uint8_t {
  BilinearLegacy,
  Bilinear,
  BicubicLegacy,
  Bicubic,
  BilinearAntialiased,
  BicubicAntialiased,
};

/// What is mirrored: the source before or the result after it is resampled. Legacy forms tell the
/// two apart.
enum class MirrorStage : std::uint8_t { Before, After };

struct Resampling {
  Filter filter = Filter::BilinearLegacy;
  MirrorStage mirror = MirrorStage::Before;
  friend bool operator==(const Resampling&, const Resampling&) = default;
};

/// For each of `size()` results along one axis the source pixels first .. first + taps - 1 and
/// their weights, which sum to 1.
struct AxisWeights {
  std::int32_t taps = 0;
  std::vector<std::int32_t> first;  ///< one a result
  std::vector<float> weight;        ///< `taps` a result
  std::vector<std::int32_t> fixed;  ///< the same x 2^22, for antialiased filters
  std::int32_t begin = 0;           ///< first source pixel in use
  std::int32_t end = 0;             ///< one behind the last
  [[nodiscard]] std::size_t size() const noexcept { return first.size(); }
};

/// Resamples; keeps its tables and rows from one picture to the next. One per thread.
class Resampler {
 public:
  /// Prepares for `window`, side x side pixels of it, and returns the box of the picture that is
  /// needed for that.
  PixelBox prepare(const ImageWindow& window, const Resampling& resampling, std::int32_t side) {
    return prepare(window, resampling, side, side);
  }
  /// The same for a window that is no square.
  PixelBox prepare(const ImageWindow& window, const Resampling& resampling, std::int32_t width,
                   std::int32_t height);

  /// Writes the window last prepared, height x width x 3 bytes, from a view that holds the box
  /// asked for.
  void resample(const PixelView& source, std::span<std::uint8_t> image);

 private:
  void resample_float(const PixelView& source, std::uint8_t* image);
  void resample_fixed(const PixelView& source, std::uint8_t* image);

  Filter filter_ = Filter::BilinearLegacy;
  AxisWeights columns_;
  AxisWeights rows_;
  std::vector<float> float_row_;         ///< a row of the source's columns
  std::vector<float> float_result_;      ///< a row of the result
  std::vector<std::int32_t> fixed_row_;  ///< as float_row_
  std::vector<std::int32_t> fixed_result_;
  std::vector<std::uint8_t> narrow_rows_;  ///< all rows in use, at the result's width
};

}  // namespace millrace::io
