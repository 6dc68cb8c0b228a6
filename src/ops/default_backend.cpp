// SPDX-License-Identifier: Apache-2.0
#include "ops/weighted.hpp"

namespace millrace::ops {

std::unique_ptr<Backend> make_default_backend() {
#ifdef MILLRACE_ONEDNN
  return make_onednn_backend();
#else
  return make_kokkos_backend();
#endif
}

}  // namespace millrace::ops
