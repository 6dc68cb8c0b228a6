// SPDX-License-Identifier: Apache-2.0
//
// The backends of this build. Each must pass the tests.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include "ops/backend.hpp"
#include "ops/wider_kernels.hpp"
#ifdef MILLRACE_CUBLASLT
#include "ops/cublas/weight_op.hpp"
#endif

namespace millrace::ops {

/// Whether the vendor is cuDNN.
#ifdef MILLRACE_CUDNN
inline constexpr bool kCudnn = true;
#else
inline constexpr bool kCudnn = false;
#endif

/// Whether the vendor rounds the weight gradients of micro-batches to the type of the activations.
[[nodiscard]] inline bool rounds_gradients([[maybe_unused]] const ConvShape& shape,
                                           [[maybe_unused]] DType type) {
#ifdef MILLRACE_CUBLASLT
  if (cublas::WeightGradients::has(shape, type)) return false;
#endif
  return kCudnn;
}

/// Frugal: oneDNN's kernels with the least scratch. Kokkos: no vendor. Own: our replacements for
/// slow vendor kernels, used for all shapes that they support, and plain loops.
enum class BackendKind { Vendor, Frugal, Kokkos, Own };

[[nodiscard]] inline const char* name_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::Vendor:
      return kCudnn ? "cuDNN" : "oneDNN";
    case BackendKind::Frugal:
      return "Frugal";
    case BackendKind::Kokkos:
      return "Kokkos";
    case BackendKind::Own:
      return "Own";
  }
  return "";
}
inline void PrintTo(BackendKind kind, std::ostream* out) { *out << name_of(kind); }

/// Claims every op with one of our kernels.
class OwnVendor final : public Vendor {
 public:
  [[nodiscard]] const char* name() const override { return "own"; }
  [[nodiscard]] bool multiplies(DType) const override { return false; }
  [[nodiscard]] LinearClaim claim(const ConvShape& s, DType type, Passes passes,
                                  std::int64_t) const override {
    if constexpr (device::kOnCores)
      if (is_winograd(s)) return {passes, make_winograd(s, type, passes)};
    if (is_depthwise(s))
      return {passes,
              make_by_pass(kOnlyWeight, make_depthwise_gradient(s, type), make_plain(s, type))};
    for (const std::int64_t merged : {4, 3, 2}) {
      if (s.bias || s.groups % merged != 0) continue;
      return {passes,
              make_merged_groups(s, merged, type, make_plain(merged_shape(s, merged), type))};
    }
    return {passes, make_plain(s, type)};
  }
  [[nodiscard]] LinearClaim claim(const DenseShape& s, DType type, Passes passes,
                                  std::int64_t) const override {
    return {passes, make_plain(s, type)};
  }
  using Vendor::claim;
};

[[nodiscard]] inline std::vector<BackendKind> backend_kinds() {
#if defined(MILLRACE_ONEDNN) || defined(MILLRACE_CUDNN)
  return {BackendKind::Vendor, BackendKind::Frugal, BackendKind::Kokkos, BackendKind::Own};
#else
  return {BackendKind::Kokkos, BackendKind::Own};
#endif
}

[[nodiscard]] inline std::unique_ptr<Backend> make_backend(BackendKind kind) {
  switch (kind) {
    case BackendKind::Vendor:
      return make_default_backend();
    case BackendKind::Frugal:
      return make_default_backend({.convolution = 0, .dense = 0});
    case BackendKind::Own:
      return std::make_unique<Backend>(std::make_unique<OwnVendor>());
    case BackendKind::Kokkos:
      break;
  }
  return std::make_unique<Backend>();
}

}  // namespace millrace::ops
