// SPDX-License-Identifier: Apache-2.0
//
// Our own linear ops: products of tiles, plain loops, and ops that compute some passes of another
// one in a faster way. kernel_choice.hpp says when they are used.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// Linear ops as products of tiles, for all passes and every Kokkos backend: what runs where there
/// is no library. They read kernels in canonical order; scratch holds parts of weight gradients.
[[nodiscard]] std::unique_ptr<LinearOp> make_tiled(const ConvShape& shape, DType type);
[[nodiscard]] std::unique_ptr<LinearOp> make_tiled(const DenseShape& shape, DType type);

/// A dense op as a 1x1 convolution of 1x1 images.
[[nodiscard]] ConvShape as_convolution(const DenseShape& shape);

/// Linear ops as plain loops, slow and simple: the reference of the others. They read kernels in
/// canonical order and need neither packed copies nor scratch.
[[nodiscard]] std::unique_ptr<LinearOp> make_plain(const ConvShape& shape, DType type);
[[nodiscard]] std::unique_ptr<LinearOp> make_plain(const DenseShape& shape, DType type);

/// Combines two ops into one: `first` runs the passes in `firsts`, `second` runs the others. Both
/// are prepared for the same shape, each for its own passes only.
[[nodiscard]] std::unique_ptr<LinearOp> make_by_pass(Passes firsts, std::unique_ptr<LinearOp> first,
                                                     std::unique_ptr<LinearOp> second);

// ---- depthwise convolutions

/// Whether make_depthwise_gradient supports `shape`: a depthwise convolution with a 3x3 or 5x5
/// window, without dilation and bias.
[[nodiscard]] bool is_depthwise(const ConvShape& shape);
/// A depthwise convolution that computes its weight gradient with our own loops over NHWC images, a
/// register strip of channels at a time. `rest` computes the other passes; it is prepared for the
/// same shape without the weight gradient.
[[nodiscard]] std::unique_ptr<LinearOp> make_depthwise_gradient(const ConvShape& shape, DType type,
                                                                std::unique_ptr<LinearOp> rest);

/// Whether make_depthwise_pixels supports `shape`: one that is_depthwise, with a horizontal stride
/// of 1 or 2.
[[nodiscard]] bool has_depthwise_pixels(const ConvShape& shape);
/// Forward and backward input of a depthwise convolution, without a weight gradient. It reads the
/// kernel in canonical order and has the bits of plain loops.
[[nodiscard]] std::unique_ptr<LinearOp> make_depthwise_pixels(const ConvShape& shape, DType type);

// ---- strided 1x1 convolutions

/// Whether `shape` is a strided 1x1 convolution without padding and groups.
[[nodiscard]] bool is_strided_pointwise(const ConvShape& shape);
/// The same convolution with stride 1 over only the pixels that it reads.
[[nodiscard]] ConvShape gathered_shape(const ConvShape& shape);
/// Computes a strided 1x1 convolution by gathering the pixels that it reads and calling `dense`,
/// which is prepared for gathered_shape(shape). The gather is cheap, and vendors' kernels for the
/// strided form are slow: backward weight of oneDNN 2.6 runs at an eighth of the dense rate.
[[nodiscard]] std::unique_ptr<LinearOp> make_strided_pointwise(const ConvShape& shape, DType type,
                                                               std::unique_ptr<LinearOp> dense);

// ---- narrow groups

/// The same convolution with each `merged` neighboring groups joined into one. `merged` must divide
/// the number of groups.
[[nodiscard]] ConvShape merged_shape(const ConvShape& shape, std::int64_t merged);
/// Computes a grouped convolution with `wide`, a convolution with wider groups that is prepared for
/// merged_shape(shape, merged). The wide kernel holds the narrow ones on its diagonal and zeros
/// elsewhere. Only one product in `merged` is useful. It is still faster on processors whose matrix
/// units take 16 channels at a time, because the library is slow for narrower groups.
[[nodiscard]] std::unique_ptr<LinearOp> make_merged_groups(const ConvShape& shape,
                                                           std::int64_t merged, DType type,
                                                           std::unique_ptr<LinearOp> wide);

// ---- padded channels

/// The convolution of padded pixels without padding: as many channels as they have in memory.
[[nodiscard]] ConvShape padded_shape(const ConvShape& shape);
/// Computes a convolution whose pixels are padded by `wide`, which is prepared for
/// padded_shape(shape). The wide kernel has zeros for the channels of the padding, whose gradient
/// is left out. For images only: there is no backward input, no group and no bias.
[[nodiscard]] std::unique_ptr<LinearOp> make_padded_channels(const ConvShape& shape, DType type,
                                                             std::unique_ptr<LinearOp> wide);

// ---- backward input as a forward pass (turned.cpp)

/// Whether this applies to `shape`: stride 1, one group, no dilation, padding smaller than the
/// window.
[[nodiscard]] bool is_turnable(const ConvShape& shape);
/// The convolution from dy to dx.
[[nodiscard]] ConvShape turned_shape(const ConvShape& shape);
/// An op with backward input as its only pass, in float32. It uses the forward pass of `turned`,
/// which is prepared for turned_shape() and only for that pass.
[[nodiscard]] std::unique_ptr<LinearOp> make_turned(const ConvShape& shape,
                                                    std::unique_ptr<LinearOp> turned);

// ---- 16 bits on processors without 16-bit products (widened.cpp)

/// Numbers of elements that an op reads and writes.
struct WidenedShape {
  std::int64_t blocks = 1;
  std::int64_t in = 0;   ///< of x, in a block
  std::int64_t out = 0;  ///< of y, in a block
  std::int64_t kernel = 0;
};
/// Number of samples in a block: the largest divisor of `batch` such that the float32 copies of x
/// and y, together `sample_elements` elements per sample, fit into the caches of `threads` cores;
/// at least 1.
[[nodiscard]] std::int64_t samples_in_block(std::int64_t batch, std::int64_t sample_elements,
                                            int threads);
/// Makes an op for the 16-bit type `type` from `wide`, which is prepared for float32 and one block
/// of samples. Errors: Internal, for other types.
[[nodiscard]] std::unique_ptr<LinearOp> make_widened(const WidenedShape& shape, DType type,
                                                     std::unique_ptr<LinearOp> wide);

}  // namespace millrace::ops
