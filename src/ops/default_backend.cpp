// SPDX-License-Identifier: Apache-2.0
#include "ops/weighted.hpp"

namespace millrace::ops {

std::unique_ptr<Backend> make_default_backend([[maybe_unused]] const ScratchCaps& caps) {
#ifdef MILLRACE_ONEDNN
  return make_onednn_backend(caps);
#else
  return make_kokkos_backend();
#endif
}

}  // namespace millrace::ops
