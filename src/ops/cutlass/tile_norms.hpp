// SPDX-License-Identifier: Apache-2.0
//
// Norms whose sums are added up in tiles (tile_sums.hpp): the passes of ops/norm.hpp, and their
// second half alone, for products that have done the first.
#pragma once

#include "ops/norm.hpp"

namespace millrace::ops::tiles {

/// Whether there are products of T, and norms that add up in their tiles. Not on cores.
template <class T>
inline constexpr bool kHasType = sizeof(T) == 2 && !device::kOnCores;

// As the functions of ops/norm.hpp with these names, but for shapes that are summed in tiles.

template <class T>
void norm_statistics(const device::ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, NormScratch scratch, const T* x, float epsilon);
template <class T>
void norm_moments(const device::ExecutionSpace& space, const NormShape& shape, Accumulator* moments,
                  NormScratch scratch, const T* x);
/// norm_backward_reduce.
template <class T>
void norm_gradients(const device::ExecutionSpace& space, const NormShape& shape,
                    const NormBackwardReduce<T>& args);
/// norm_backward_sums.
template <class T>
void norm_sums(const device::ExecutionSpace& space, const NormShape& shape, Accumulator* sums,
               const NormBackwardReduce<T>& args);

// What is left to do when `left`, of shape.tile_shape(), has the sums of all tiles.

void join_statistics(const device::ExecutionSpace& space, const NormShape& shape, float* statistics,
                     RunningSums running, const float* left, float epsilon);
template <class T>
void join_gradients(const device::ExecutionSpace& space, const NormShape& shape,
                    const NormBackwardReduce<T>& args, const float* left);

}  // namespace millrace::ops::tiles
