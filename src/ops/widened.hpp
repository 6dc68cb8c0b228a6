// SPDX-License-Identifier: Apache-2.0
//
// 16-bit convolution and dense ops on processors without 16-bit products: a float32 op between
// conversions. Operands are widened exactly, products and sums are float32, and the result is
// rounded once, as in an op with 16-bit products and float32 sums.
//
// A batch is processed in blocks of samples whose float32 copies fit into the cache, so that only
// 16-bit values go to memory and scratch holds just one block. Weight gradients of the blocks are
// added in ascending order.
//
//   x, 16 bits  ->  widen block  ->  float32 op  ->  round block  ->  y, 16 bits
#pragma once

#include <cstdint>
#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

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
