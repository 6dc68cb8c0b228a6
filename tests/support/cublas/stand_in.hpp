// SPDX-License-Identifier: Apache-2.0
//
// In place of cublasLt, for tests: the functions of it that millrace calls, on host memory. It
// keeps to the library's own rules (cublasLt.h and its manual) and refuses what they do not allow.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::testing::cublas {

/// A kernel: into how many parts it divides sums, how it joins them, and the scratch it needs.
struct Kernel {
  std::int32_t parts = 1;
  cublasLtReductionScheme_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::size_t scratch = 0;
  /// What the library says of the proposal itself: others than this must not run.
  cublasStatus_t state = CUBLAS_STATUS_SUCCESS;
  friend bool operator==(const Kernel&, const Kernel&) = default;
};

/// The kernels that are proposed from now on, in this order, if they keep to what was asked for.
void propose(std::vector<Kernel> kernels);

/// Length of the blocks of a sum. What is left behind the last one may be lost where the sum is
/// divided, as is reported of the library (src/ops/cublas/weight_product.cpp).
inline constexpr std::int64_t kBlock = 64;

/// What has happened so far.
struct Calls {
  int searches = 0;               ///< for kernels
  int live_objects = 0;           ///< that were created and not destroyed
  Kernel last = {};               ///< that ran
  cudaStream_t stream = nullptr;  ///< that it ran on
};
[[nodiscard]] const Calls& calls();

}  // namespace millrace::testing::cublas
