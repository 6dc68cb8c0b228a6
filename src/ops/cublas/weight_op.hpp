// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/cublas/library.hpp"
#include "ops/linear.hpp"

namespace millrace::ops::cublas {

/// Weight gradients by the library on the device that Kokkos uses. Only its first run needs the
/// device.
class WeightGradients {
 public:
  /// Whether the gradient is one product of 16-bit matrices: 1x1 convolutions with stride 1, and
  /// dense ops.
  [[nodiscard]] static bool has(const ConvShape& shape, DType type);

  /// An op with backward weight as its only pass. `cap` limits its scratch.
  [[nodiscard]] std::unique_ptr<LinearOp> make(const ConvShape& shape, DType type,
                                               std::int64_t cap) const;

 private:
  std::shared_ptr<const Library> library_ = std::make_shared<const Library>();
};

}  // namespace millrace::ops::cublas
