// SPDX-License-Identifier: Apache-2.0
//
// Ops that treat channels individually: concatenation, and the scaling of squeeze-and-excite (Hu et
// al. 2018), which has one factor per sample and channel.
#pragma once

#include <cstdint>

#include "ops/activation_function.hpp"
#include "ops/inlined_norm.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// One operand of a concatenation: channels [first, first + channels) of a result with
/// `all_channels` channels per pixel.
struct ChannelSlice {
  std::int64_t pixels = 1;  ///< of all samples
  std::int64_t all_channels = 1;
  std::int64_t first = 0;
  std::int64_t channels = 1;
};

/// y[slice] = fn(x); the rest of y does not change.
template <class T>
void concat_forward(const device::ExecutionSpace& space, const ChannelSlice& slice, T* y,
                    const T* x, Activation fn);

/// dx = dy[slice] * fn'(y[slice]). fn must be None, which does not read y, or Relu, whose gradient
/// can be computed from the output.
template <class T>
void concat_backward(const device::ExecutionSpace& space, const ChannelSlice& slice, T* dx,
                     const T* dy, const T* y, Activation fn);

struct ScaleShape {
  std::int64_t samples = 1;
  std::int64_t pixels = 1;  ///< of a sample
  std::int64_t channels = 1;
  [[nodiscard]] std::int64_t elements() const { return samples * pixels * channels; }
};

/// y = fn(x * scale + skip), with product and sum each rounded to T; `skip` may be null. `scale`
/// has one factor per sample and channel.
template <class T>
void scale_forward(const device::ExecutionSpace& space, const ScaleShape& shape, T* y, const T* x,
                   const T* scale, const T* skip, Activation fn);

/// dx = dy * scale; dscale = the sum of dy * x over a sample's pixels, in float32 and in ascending
/// order. dx may be dy. If there is a `norm`, dscale is that of what it makes of x, and dx and
/// scale are not used.
template <class T>
void scale_backward(const device::ExecutionSpace& space, const ScaleShape& shape, T* dx, T* dscale,
                    const T* dy, const T* x, const T* scale, const InlinedNorm& norm = {});

}  // namespace millrace::ops
