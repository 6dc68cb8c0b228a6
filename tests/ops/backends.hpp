// SPDX-License-Identifier: Apache-2.0
//
// The backends of this build, each of which has to pass the tests.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include "ops/weighted.hpp"

namespace millrace::ops {

enum class BackendKind { OneDnn, Kokkos };

inline void PrintTo(BackendKind kind, std::ostream* out) {
  *out << (kind == BackendKind::OneDnn ? "oneDNN" : "Kokkos");
}

[[nodiscard]] inline std::vector<BackendKind> backend_kinds() {
#ifdef MILLRACE_ONEDNN
  return {BackendKind::OneDnn, BackendKind::Kokkos};
#else
  return {BackendKind::Kokkos};
#endif
}

[[nodiscard]] inline std::unique_ptr<Backend> make_backend(BackendKind kind) {
#ifdef MILLRACE_ONEDNN
  if (kind == BackendKind::OneDnn) return make_onednn_backend();
#endif
  (void)kind;
  return make_kokkos_backend();
}

}  // namespace millrace::ops
