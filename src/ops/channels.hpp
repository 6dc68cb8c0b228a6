// SPDX-License-Identifier: Apache-2.0
//
// Ops that tell channels apart: concatenation, and the product of squeeze-and-excite (Hu et al.
// 2018) that gives every channel of a sample its own factor.
#pragma once

#include <cstdint>

#include "ops/activation_function.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// One operand of a concatenation: `channels` channels that lie from `first` on in pixels of
/// `all_channels`.
struct ChannelSlice {
  std::int64_t pixels = 1;  ///< of all samples
  std::int64_t all_channels = 1;
  std::int64_t first = 0;
  std::int64_t channels = 1;
};

/// y[slice] = fn(x); the rest of y is left alone.
template <class T>
void concat_forward(const device::ExecutionSpace& space, const ChannelSlice& slice, T* y,
                    const T* x, Fn fn);

/// dx = dy[slice] * fn'(y[slice]). fn is None, which does not read y, or Relu, of which the output
/// tells as much as the input.
template <class T>
void concat_backward(const device::ExecutionSpace& space, const ChannelSlice& slice, T* dx,
                     const T* dy, const T* y, Fn fn);

struct ScaleShape {
  std::int64_t samples = 1;
  std::int64_t pixels = 1;  ///< of a sample
  std::int64_t channels = 1;
  [[nodiscard]] std::int64_t elements() const { return samples * pixels * channels; }
};

/// y = x * scale, rounded to T; with `skip` (else null) y = fn(that + skip), the sum rounded too.
/// `scale` has one factor for each sample and channel.
template <class T>
void scale_forward(const device::ExecutionSpace& space, const ScaleShape& shape, T* y, const T* x,
                   const T* scale, const T* skip, Fn fn);

/// dx = dy * scale; dscale = the sum of dy * x over a sample's pixels, in float32 in ascending
/// order. dx may be dy.
template <class T>
void scale_backward(const device::ExecutionSpace& space, const ScaleShape& shape, T* dx, T* dscale,
                    const T* dy, const T* x, const T* scale);

}  // namespace millrace::ops
