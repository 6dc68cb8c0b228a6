// SPDX-License-Identifier: Apache-2.0
//
// Converts the images of a micro-batch from the form in which they arrive to the network's input:
// normalizes bytes, converts floats to the storage type, and mixes images. The result does not
// depend on where images are normalized: here as in io, a pixel is (byte - mean) x scale in
// float32, rounded once to the storage type.
//
// Images may be stored in another shape than their own, as the first convolution reads them best:
//
//   more channels        each pixel with zeros behind its channels
//   half of the size     each block of 2x2 pixels as one pixel, whose channels are those of the
//                        block's pixels, row by row, and zeros behind them
#pragma once

#include <cstdint>
#include <optional>

#include "core/image_records.hpp"
#include "core/shape.hpp"
#include "device/tensor.hpp"

namespace millrace::ops {

struct PrepareImagesShape {
  std::int64_t batch = 0;
  Shape image;
  std::optional<Shape> stored = {};  ///< none: `image`

  [[nodiscard]] Shape shape_in_memory() const { return stored.value_or(image); }
};

/// y = normalized `bytes` (NHWC) with one PixelScaling per image, then mixed unless `mixing` is
/// null. At most kMaxByteChannels channels.
template <class T>
void prepare_bytes(const device::ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                   const std::uint8_t* bytes, const PixelScaling* scaling,
                   const ImageMixing* mixing);

/// y = x rounded to nearest, then mixed with one ImageMixing per image unless `mixing` is null.
/// Mixing reads rounded values, computes in float32 and rounds once. `Stored` is float, bfloat16 or
/// float16.
template <class T, class Stored>
void prepare_floats(const device::ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                    const Stored* x, const ImageMixing* mixing);

}  // namespace millrace::ops
