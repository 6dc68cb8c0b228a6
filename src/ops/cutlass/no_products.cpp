// SPDX-License-Identifier: Apache-2.0
//
// In place of products.cpp where there is no CUTLASS.
#include "core/error.hpp"
#include "ops/cutlass/products.hpp"

namespace millrace::ops::tiles {

bool has_products() { return false; }

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

#define MILLRACE_NO_PRODUCTS(T)                               \
  template decltype(multiply<T>) multiply<T>;                 \
  template decltype(multiply_moments<T>) multiply_moments<T>; \
  template decltype(multiply_gradients<T>) multiply_gradients<T>;
MILLRACE_NO_PRODUCTS(bfloat16)
MILLRACE_NO_PRODUCTS(float16)

}  // namespace millrace::ops::tiles
