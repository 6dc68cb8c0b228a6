// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/dtype.hpp"
#include "ops/cublas/library.hpp"

namespace millrace::ops::cublas {

/// The matrices of a weight gradient: x is [rows][in], dy is [rows][out], the gradient [out][in].
struct ProductShape {
  std::int64_t rows = 1;
  std::int64_t in = 1;
  std::int64_t out = 1;
  DType type = DType::BF16;  ///< of x and dy: a 16-bit one
};

/// Alignment of scratch that the library demands, in bytes.
inline constexpr std::int64_t kScratchAlignment = 256;

/// The weight gradient of one shape.
class WeightProduct {
 public:
  /// `scratch`: bytes that run() will be given.
  WeightProduct(const ProductShape& shape, std::int64_t scratch);

  /// Whether the library has a kernel that keeps to the rules. The first call asks it, and must not
  /// be captured into a graph.
  [[nodiscard]] bool has_kernel(cublasLtHandle_t library);

  /// Queues dw = dy^T x, added to dw unless `first`. Addresses of matrices are multiples of 16.
  /// Only if has_kernel() has said so.
  void run(cublasLtHandle_t library, cudaStream_t stream, float* dw, const void* dy, const void* x,
           bool first, std::byte* scratch);

 private:
  [[nodiscard]] std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t library) const;

  ProductShape shape_;
  std::int64_t scratch_;
  Operation operation_;
  Layout x_, dy_, dw_;
  bool asked_ = false;
  std::optional<cublasLtMatmulAlgo_t> kernel_;
};

}  // namespace millrace::ops::cublas
