// SPDX-License-Identifier: Apache-2.0
//
// An op that another one, the inner op, computes from operands in another form.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "ops/linear.hpp"

namespace millrace::ops {

/// How the operands of an op become those of the inner op. What is not set is the same memory for
/// both.
struct Operands {
  /// x or y, and their gradients.
  struct Image {
    std::int64_t bytes = 0;  ///< in scratch, of a block of the inner op
    std::int64_t step = 0;   ///< bytes from a block of the op to the next
    std::function<void(const device::ExecutionSpace&, std::byte* inner, const std::byte* own)>
        to_inner;
    std::function<void(const device::ExecutionSpace&, std::byte* own, const std::byte* inner)>
        to_own;
  };
  std::int64_t blocks = 1;  ///< that the inner op computes one after another, in ascending order
  Image x, y;

  std::int64_t kernel_bytes = 0;  ///< of the inner op
  std::function<void(const device::ExecutionSpace&, std::byte* inner, const std::byte* own)> kernel;

  std::int64_t gradient_bytes = 0;  ///< in scratch, of the inner kernel
  /// Takes the gradient out of that of the inner kernel; adds it if not `first`.
  std::function<void(const device::ExecutionSpace&, float* own, const float* inner, bool first)>
      add_gradient;

  /// Backward input, which is then the only pass, is the inner op's forward pass.
  bool turned = false;
  bool of_images = false;  ///< that have no gradient
};

[[nodiscard]] std::unique_ptr<LinearOp> make_rewritten(Operands operands,
                                                       std::unique_ptr<LinearOp> inner);

}  // namespace millrace::ops
