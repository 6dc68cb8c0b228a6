// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/shape.hpp"
#include "device/tensor.hpp"
#include "ops/inlined_norm.hpp"

namespace millrace::ops {

/// Window, stride and padding of a pooling op or a convolution over NHWC images.
struct WindowShape {
  std::int64_t batch = 1;
  Shape in;
  Shape out;
  std::int64_t kernel_h = 1;
  std::int64_t kernel_w = 1;
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  std::int64_t pad_top = 0;
  std::int64_t pad_left = 0;

  [[nodiscard]] std::int64_t in_elements() const { return batch * in.elements(); }
  [[nodiscard]] std::int64_t out_elements() const { return batch * out.elements(); }
  friend bool operator==(const WindowShape&, const WindowShape&) = default;
};

/// y = maximum over the window. `winner` stores the row-major index of the maximum in the window,
/// which backward needs; it may be null. W is std::uint8_t, or std::int32_t, which windows of more
/// than 256 positions need. The first of equal values wins; padding never wins. The window is one
/// of what `norm`, with ReLU, makes of x if there is one.
template <class T, class W>
void max_pool_forward(const device::ExecutionSpace& space, const WindowShape& shape, T* y,
                      W* winner, const T* x, const InlinedNorm& norm = {});

/// dx = sum of the dy of all windows whose maximum the pixel is, in float32 and in ascending order
/// of output pixels.
template <class T, class W>
void max_pool_backward(const device::ExecutionSpace& space, const WindowShape& shape, T* dx,
                       const T* dy, const W* winner);

/// y = mean over the window. Padding is counted only if `count_padding` is true.
template <class T>
void average_pool_forward(const device::ExecutionSpace& space, const WindowShape& shape, T* y,
                          const T* x, bool count_padding);
template <class T>
void average_pool_backward(const device::ExecutionSpace& space, const WindowShape& shape, T* dx,
                           const T* dy, bool count_padding);

/// y[n][c] = mean over all pixels, summed in float32: on cores in ascending order, on accelerators
/// as ops/pixel_sums.hpp says; of what `norm` makes of x if there is one.
template <class T>
void global_average_forward(const device::ExecutionSpace& space, std::int64_t batch,
                            const Shape& in, T* y, const T* x, const InlinedNorm& norm = {});
template <class T>
void global_average_backward(const device::ExecutionSpace& space, std::int64_t batch,
                             const Shape& in, T* dx, const T* dy);

/// Shortcut of type A: every stride-th pixel, with zero channels added before and after.
template <class T>
void shortcut_pad_forward(const device::ExecutionSpace& space, const WindowShape& shape,
                          std::int64_t channels_before, T* y, const T* x);
template <class T>
void shortcut_pad_backward(const device::ExecutionSpace& space, const WindowShape& shape,
                           std::int64_t channels_before, T* dx, const T* dy);

}  // namespace millrace::ops
