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
  const std::string_view name = name_of(type);
  if (type == DType::F32) return std::string(name);
  if (make_default_backend()->multiplies(type))
    return fmt::format("{}: products of 16 bits, sums in float32", name);
#ifndef MILLRACE_ONEDNN
  return fmt::format("{}: stored in 16 bits, multiplied in float32", name);
#endif
  return fmt::format("{}: stored in 16 bits, multiplied in float32: {}", name,
                     type == DType::BF16 ? "this processor has no 16-bit products"
                                         : "processor and library have no products of it");
}

}  // namespace millrace::ops
