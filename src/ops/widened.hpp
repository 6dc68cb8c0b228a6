// SPDX-License-Identifier: Apache-2.0
//
// 16-bit convolution and dense ops on processors without 16-bit products: by a float32 op between
// conversions. The operands widen exactly, products and sums are float32, the result is rounded
// once, which is what an op with 16-bit products and float32 sums does as well.
//
// A batch goes through in blocks of samples whose float32 copies stay in the cache: memory sees
// only the 16-bit values, and the scratch is that of a block. Weight gradients of the blocks add up
// in ascending order.
//
//   x, 16 bits  ->  widen block  ->  float32 op  ->  round block  ->  y, 16 bits
#pragma once

#include <cstdint>
#include <memory>

#include "ops/weighted.hpp"

namespace millrace::ops {

/// Elements that an op reads and writes.
struct WidenedShape {
  std::int64_t blocks = 1;
  std::int64_t in = 0;   ///< of x, in a block
  std::int64_t out = 0;  ///< of y, in a block
  std::int64_t kernel = 0;
};

/// Samples in a block: the most that divide the batch and whose float32 copies, of
/// `sample_elements` elements of x and y each, fit the cache of `threads` cores; at least one.
[[nodiscard]] std::int64_t samples_in_block(std::int64_t batch, std::int64_t sample_elements,
                                            int threads);

/// The op for 16-bit `type` from one that is prepared for float32 and a block of samples. Errors:
/// Internal for other types.
[[nodiscard]] std::unique_ptr<WeightedOp> make_widened(const WidenedShape& shape, DType type,
                                                       std::unique_ptr<WeightedOp> wide);

}  // namespace millrace::ops
