// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#ifdef MILLRACE_ONEDNN
#include <oneapi/dnnl/dnnl_version.h>
#endif

#include "device/environment.hpp"
#include "ops/weighted.hpp"

namespace millrace::ops {

std::unique_ptr<Backend> make_default_backend([[maybe_unused]] const ScratchCaps& caps) {
#ifdef MILLRACE_ONEDNN
  return make_onednn_backend(caps);
#else
  return make_kokkos_backend();
#endif
}

namespace {

/// Why there are no products of a 16-bit type, behind a colon; nothing where no library could.
std::string why_not([[maybe_unused]] DType type) {
#ifdef MILLRACE_ONEDNN
  if (type == DType::F16 && DNNL_VERSION_MAJOR < 3) return ": this oneDNN has no products of it";
  if (const std::string_view cap = device::vendor_cap(); !cap.empty())
    return fmt::format(": {} allows no 16-bit products", cap);
  return ": this processor has no 16-bit products";
#else
  return "";
#endif
}

}  // namespace

std::string describe_products(DType type) {
  if (type == DType::F32) return std::string(name_of(type));
  if (make_default_backend()->multiplies(type))
    return fmt::format("{}: products of 16 bits, sums in float32", name_of(type));
  return fmt::format("{}: stored in 16 bits, multiplied in float32{}", name_of(type),
                     why_not(type));
}

}  // namespace millrace::ops
