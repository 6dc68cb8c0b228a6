// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices on Hopper GPUs, each with a norm's sums over the tiles of its result. Images
// are NHWC, so a 1x1 convolution is one: a row for every pixel of the batch, and
//
//     y  = x  w^T     x  [rows][in],   w [out][in],   y  [rows][out]
//     dx = dy w       dy [rows][out],  w [out][in],   dx [rows][in]
//
// Operands are of a 16-bit type, sums of products float32. The result is rounded once, as that of
// any other kernel, and leaves the registers through shared memory, where tile_sums.hpp adds it up.
#pragma once

#include <cstdint>

#include "ops/cutlass/tile_sums.hpp"
#include "ops/linear.hpp"

namespace millrace::ops::tiles {

/// Whether the environment asks for them: MILLRACE_PRODUCTS=1. Errors: Config, for other values
/// than 1 and 0.
[[nodiscard]] bool wants_products();
/// Whether this process computes with them: where they are asked for. Errors: Config, if they are,
/// but this build has no CUTLASS (MILLRACE_CUTLASS) or this GPU is not of the Hopper generation.
[[nodiscard]] bool has_products();

/// The operands of a product. Addresses and rows are aligned to 16 bytes.
template <class T>
struct Operands {
  const T* rows = nullptr;  ///< x or dy
  const T* kernel = nullptr;
  std::int64_t inner = 0;  ///< values in a row of x or dy
};

/// How the kernel lies in memory: for y as [columns][inner] of the product, for dx as
/// [inner][columns].
enum class Result { Y, Dx };

/// The product alone.
template <class T>
void multiply(const device::ExecutionSpace& space, const TileShape& shape,
              const Operands<T>& operands, Result result, T* out);

/// y, and what TileMoments leave of it.
template <class T>
void multiply_moments(const device::ExecutionSpace& space, const TileShape& shape,
                      const Operands<T>& operands, T* y, float* left);

/// dx, the last of the gradients that a norm and its activation are sent (`in.dy` is not read):
/// what TileGradients leave of it, and write to `out`. Whether there are kernels for such a norm:
[[nodiscard]] constexpr bool has_gradients(Activation fn, bool mask, bool two) {
  return fn == Activation::Relu && mask == two;
}
template <class T>
void multiply_gradients(const device::ExecutionSpace& space, const TileShape& shape,
                        const Operands<T>& operands, const NormBackwardReduce<T>& in, T* out,
                        float* left);

/// Instantiates these functions, where they are defined.
#define MILLRACE_PRODUCTS(T)                                  \
  template decltype(multiply<T>) multiply<T>;                 \
  template decltype(multiply_moments<T>) multiply_moments<T>; \
  template decltype(multiply_gradients<T>) multiply_gradients<T>;

}  // namespace millrace::ops::tiles
