// SPDX-License-Identifier: Apache-2.0
//
// From the images of a micro-batch as they arrive to those that the network reads: bytes become
// floats, floats change their type, and images are mixed. The result does not depend on where
// normalisation happens: a pixel is (byte - mean) x scale in float32, rounded once to the storage
// type, as the data side does it.
#pragma once

#include <cstdint>

#include "core/image_records.hpp"
#include "core/shape.hpp"
#include "device/tensor.hpp"

namespace millrace::ops {

struct PrepareImagesShape {
  std::int64_t batch = 0;
  Shape image;
};

/// y = normalised `bytes` (NHWC), one PixelScaling an image; then mixed, unless `mixing` is
/// nullptr. At most kMaxByteChannels channels.
template <class T>
void prepare_bytes(const device::ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                   const std::uint8_t* bytes, const PixelScaling* scaling,
                   const ImageMixing* mixing);

/// y = x rounded to nearest; then mixed by one ImageMixing an image, unless `mixing` is nullptr:
/// values of the storage type, product and sum in float32, rounded once. Stored: float, bfloat16 or
/// float16.
template <class T, class Stored>
void prepare_floats(const device::ExecutionSpace& space, const PrepareImagesShape& shape, T* y,
                    const Stored* x, const ImageMixing* mixing);

}  // namespace millrace::ops
