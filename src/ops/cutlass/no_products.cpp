// SPDX-License-Identifier: Apache-2.0
//
// In place of products.cpp where there is no CUTLASS.
#include "core/error.hpp"
#include "ops/cutlass/products.hpp"

namespace millrace::ops::tiles {

bool has_products() {
  static const bool wanted = wants_products();
  if (wanted)
    fail(
        ErrorKind::Config,
        "MILLRACE_PRODUCTS is 1, but this build has no CUTLASS: build with CUTLASS_INCLUDE_DIR, or "
        "set MILLRACE_PRODUCTS=0");
  return false;
}

template <class T>
void multiply(const device::ExecutionSpace&, const TileShape&, const Operands<T>&, Result, T*) {
  fail(ErrorKind::Internal, "a product without CUTLASS");
}
template <class T>
void multiply_moments(const device::ExecutionSpace&, const TileShape&, const Operands<T>&, T*,
                      float*) {
  fail(ErrorKind::Internal, "a product without CUTLASS");
}
template <class T>
void multiply_gradients(const device::ExecutionSpace&, const TileShape&, const Operands<T>&,
                        const NormBackwardReduce<T>&, T*, float*) {
  fail(ErrorKind::Internal, "a product without CUTLASS");
}

MILLRACE_PRODUCTS(bfloat16)
MILLRACE_PRODUCTS(float16)

}  // namespace millrace::ops::tiles
