// SPDX-License-Identifier: Apache-2.0
//
// Convolutions that others with more channels compute, whose kernels have zeros beside their own
// values: of groups that are joined, and of a network's images as they are stored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "ops/linear.hpp"

namespace millrace::ops {

/// What the matrix units of a processor take at a time.
inline constexpr std::int64_t kMatrixChannels = 16;

/// How images should be stored (ConvShape::stored) if only the convolution `first` reads them;
/// none: as they are. Where kernels want `least` channels in 16 bits, images are filled up to so
/// many. With `in_blocks`, those of a convolution with stride 2 are stored in blocks of 2x2 pixels:
/// its 3 x 4 channels fill most of a matrix unit's, and an image takes half of the bytes that eight
/// channels take. Float32 and small images gain nothing.
[[nodiscard]] std::optional<Shape> stored_image(const ConvShape& first, DType type,
                                                std::int64_t least, bool in_blocks);
/// The convolution of stored images that computes the one that reads them. Of blocks, with stride
/// 1:
///
///   pixels, padding 3, window 7    ...0 1 2 3 4 5 6 7       output o reads 2o - 3 .. 2o + 3
///   blocks, padding 2, window 4   (.).)(0 1)(2 3)(4 5)      it reads o - 2 .. o + 1, the first tap
///                                                           of which is zero
[[nodiscard]] ConvShape as_stored(const ConvShape& shape);
/// Makes it of `wide`, which is prepared for as_stored(shape). It has no gradient of images.
[[nodiscard]] std::unique_ptr<LinearOp> make_stored(const ConvShape& shape, DType type,
                                                    std::unique_ptr<LinearOp> wide);

/// The same convolution with each `merged` neighboring groups joined into one. `merged` must divide
/// the number of groups.
[[nodiscard]] ConvShape merged_shape(const ConvShape& shape, std::int64_t merged);
/// Computes a grouped convolution without bias with `wide`, a convolution with wider groups that is
/// prepared for merged_shape(shape, merged). The wide kernel holds the narrow ones on its diagonal
/// and zeros elsewhere, so only one product in `merged` is useful.
[[nodiscard]] std::unique_ptr<LinearOp> make_merged_groups(const ConvShape& shape,
                                                           std::int64_t merged, DType type,
                                                           std::unique_ptr<LinearOp> wide);

}  // namespace millrace::ops
