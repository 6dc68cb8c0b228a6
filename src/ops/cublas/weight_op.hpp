// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/cublas/weight_product.hpp"
#include "ops/linear.hpp"

namespace millrace::ops::cublas {

/// Weight gradients by the library on the device that Kokkos uses. Only its first run needs the
/// device.
class WeightGradients {
 public:
  /// Whether the gradient is one product of 16-bit matrices: 1x1 convolutions with stride 1, and
  /// dense ops.
  [[nodiscard]] static bool has(const ConvShape& shape, DType type);

  /// An op with backward weight as its only pass. `cap` limits the library's scratch. `other`
  /// computes the gradient if the library turns out to have no kernel for the shape, which only an
  /// open device can tell.
  [[nodiscard]] std::unique_ptr<LinearOp> make(const ConvShape& shape, DType type, std::int64_t cap,
                                               std::unique_ptr<LinearOp> other) const;

 private:
  std::shared_ptr<const Library> library_ = std::make_shared<const Library>();
};

}  // namespace millrace::ops::cublas
