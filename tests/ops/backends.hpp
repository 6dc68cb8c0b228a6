// SPDX-License-Identifier: Apache-2.0
//
// The backends of this build. Each must pass the tests.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include "ops/depthwise.hpp"
#include "ops/merged_groups.hpp"
#include "ops/weighted.hpp"

namespace millrace::ops {

/// Frugal: oneDNN's kernels with the least scratch. Own: our replacements for slow vendor kernels,
/// used for all shapes that they support.
enum class BackendKind { OneDnn, Frugal, Kokkos, Own };

[[nodiscard]] inline const char* name_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::OneDnn:
      return "oneDNN";
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

class OwnBackend final : public Backend {
 public:
  [[nodiscard]] const char* name() const override { return "own"; }
  [[nodiscard]] bool multiplies(DType) const override { return false; }
  [[nodiscard]] std::unique_ptr<WeightedOp> convolution(const ConvShape& s, DType type,
                                                        Passes passes) override {
    if (is_depthwise(s)) {
      return make_depthwise_gradient(s, type,
                                     plain_->convolution(s, type, {passes.backward_input, false}));
    }
    for (const std::int64_t merged : {4, 3, 2}) {
      if (s.bias || s.groups % merged != 0) continue;
      return make_merged_groups(s, merged, type,
                                plain_->convolution(merged_shape(s, merged), type, passes));
    }
    return plain_->convolution(s, type, passes);
  }
  [[nodiscard]] std::unique_ptr<WeightedOp> dense(const DenseShape& s, DType type,
                                                  Passes passes) override {
    return plain_->dense(s, type, passes);
  }

 private:
  std::unique_ptr<Backend> plain_ = make_kokkos_backend();
};

[[nodiscard]] inline std::vector<BackendKind> backend_kinds() {
#ifdef MILLRACE_ONEDNN
  return {BackendKind::OneDnn, BackendKind::Frugal, BackendKind::Kokkos, BackendKind::Own};
#else
  return {BackendKind::Kokkos, BackendKind::Own};
#endif
}

[[nodiscard]] inline std::unique_ptr<Backend> make_backend(BackendKind kind) {
#ifdef MILLRACE_ONEDNN
  if (kind == BackendKind::OneDnn) return make_onednn_backend();
  if (kind == BackendKind::Frugal) return make_onednn_backend({.convolution = 0, .dense = 0});
#endif
  if (kind == BackendKind::Own) return std::make_unique<OwnBackend>();
  return make_kokkos_backend();
}

}  // namespace millrace::ops
