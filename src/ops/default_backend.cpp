// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ops/weighted.hpp"

namespace millrace::ops {

std::unique_ptr<Backend> make_default_backend([[maybe_unused]] const ScratchCaps& caps) {
#ifdef MILLRACE_ONEDNN
  return make_onednn_backend(caps);
#else
  return make_kokkos_backend();
#endif
}

std::string describe_products(DType type) {
  if (type == DType::F32) return std::string(name_of(type));
  const std::unique_ptr<Backend> backend = make_default_backend();
  if (backend->multiplies(type))
    return fmt::format("{}: 16-bit products, float32 sums", name_of(type));
  const std::string why = backend->why_not(type);
  return fmt::format("{}: stored in 16 bits, multiplied in float32{}{}", name_of(type),
                     why.empty() ? "" : ": ", why);
}

}  // namespace millrace::ops
