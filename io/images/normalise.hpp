// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "core/image_records.hpp"

namespace millrace::io {

/// values = (bytes - mean) x scale of three interleaved channels, in float32, then rounded to
/// nearest for 16-bit types. `scaling.real` is ignored: all pixels are real. The results equal
/// those of normalise_bytes and the devices' kernels.
void normalise_pixels(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                      std::span<float> values);
void normalise_pixels(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                      std::span<bfloat16> values);
void normalise_pixels(std::span<const std::uint8_t> bytes, const PixelScaling& scaling,
                      std::span<float16> values);

}  // namespace millrace::io
