// SPDX-License-Identifier: Apache-2.0
//
// src/ops/cublas: weight gradients of 1x1 convolutions and dense ops by cublasLt, which multiplies
// matrices and, unlike cuDNN, has float32 results for 16-bit operands.
//
// Such a gradient is one product. Images are NHWC, so x is a matrix of [rows][in] and dy one of
// [rows][out], with a row for every pixel of the batch, and the kernel is [out][in]:
//
//     dw  =  dy^T x          first micro-batch
//     dw  =  dy^T x + dw     all others
//
// The library stores matrices by columns: what is [rows][in] for us has `in` rows and a column for
// every pixel in its words. So it computes the transposed product, of the same memory:
//
//     D (in x out)  =  A (in x rows) * B (out x rows)^T  +  beta * C,    C = D = dw, beta 0 or 1
//
// Products and sums are float32 and go straight into the sums over micro-batches: nothing is
// rounded to 16 bits, and no kernel of ours has to add.
//
// weight_product  the product; needs no Kokkos, so that a stand-in for the library can test it
// weight_op       what the vendor asks: which shapes, and the op
//
// The same bits in every run (law 1) follow from three things. The kernel is the library's first
// proposal for the shape, the type and an alignment that all addresses have, so it does not depend
// on memory. The scratch is ours. And the parts of divided sums are added in a step of their own,
// never "in place": there the library promises that one part is added after the other, not which
// one first.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/dtype.hpp"

namespace millrace::ops::cublas {

/// Errors: Internal, with the library's own words, if `status` is one. `what`: what was asked for.
void check(cublasStatus_t status, std::string_view what);

/// "cublasLt 13.1.0": that which runs, not that of the headers. Needs no GPU.
[[nodiscard]] std::string library_name();

/// An object of the library, destroyed by `destroy`.
template <class Handle, auto destroy>
class Owned {
 public:
  explicit Owned(Handle handle) : handle_(handle) {}
  [[nodiscard]] Handle get() const { return handle_.get(); }

 private:
  struct Destroy {
    void operator()(Handle handle) const noexcept { destroy(handle); }
  };
  std::unique_ptr<std::remove_pointer_t<Handle>, Destroy> handle_;
};

using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// The library on the device of this thread. It opens the device when it is first needed, because
/// stages are also planned where there is none.
class Library {
 public:
  [[nodiscard]] cublasLtHandle_t handle() const;

 private:
  using Opened = Owned<cublasLtHandle_t, cublasLtDestroy>;
  mutable std::unique_ptr<Opened> opened_;
};

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
