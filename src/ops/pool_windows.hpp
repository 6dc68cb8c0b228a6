// SPDX-License-Identifier: Apache-2.0
//
// How kernels on images divide their work, by pixels and by strips of channels; and the windows of
// a pool: which input pixels an output pixel sees, and the reverse.
#pragma once

#include "ops/pool.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

// A work item is one row of pixels with all channels on CPUs, one element on GPUs.
inline constexpr bool kRows = device::kOnCores;
// Number of neighboring channels that are computed together in registers.
inline constexpr std::int64_t kStrip = kRows ? 64 : 1;

/// Channels [first, first + lanes) of one pixel of a batch of images.
struct Place {
  std::int64_t n;
  std::int64_t h;
  std::int64_t w;
  std::int64_t first;
  std::int64_t lanes;
};

inline std::int64_t work_items(std::int64_t batch, const Shape& shape) {
  return batch * (kRows ? shape.h : shape.elements());
}

/// Calls f(place) for every pixel of work item i, with all channels on CPUs and one channel on
/// GPUs.
template <class F>
KOKKOS_INLINE_FUNCTION void for_pixels(const Shape& shape, std::int64_t i, const F& f) {
  Place p;
  if constexpr (kRows) {
    p.first = 0;
    p.lanes = shape.c;
    p.h = i % shape.h;
    p.n = i / shape.h;
    for (p.w = 0; p.w < shape.w; ++p.w) f(p);
  } else {
    p.first = i % shape.c;
    p.lanes = 1;
    const std::int64_t pixel = i / shape.c;
    p.w = pixel % shape.w;
    p.h = pixel / shape.w % shape.h;
    p.n = pixel / shape.w / shape.h;
    f(p);
  }
}

/// Like for_pixels, in strips of at most kStrip channels.
template <class F>
KOKKOS_INLINE_FUNCTION void for_strips(const Shape& shape, std::int64_t i, const F& f) {
  for_pixels(shape, i, [&](const Place& pixel) {
    Place p = pixel;
    const std::int64_t last = pixel.first + pixel.lanes;
    for (; p.first < last; p.first += kStrip) {
      p.lanes = last - p.first < kStrip ? last - p.first : kStrip;
      f(p);
    }
  });
}

KOKKOS_INLINE_FUNCTION std::int64_t offset(const Shape& s, std::int64_t n, std::int64_t h,
                                           std::int64_t w) {
  return ((n * s.h + h) * s.w + w) * s.c;
}

struct Range {
  std::int64_t first;
  std::int64_t last;
};

/// Outputs [first, last) along one axis whose window contains input pixel `at`.
KOKKOS_INLINE_FUNCTION Range windows_of(std::int64_t at, std::int64_t kernel, std::int64_t stride,
                                        std::int64_t pad, std::int64_t outputs) {
  const std::int64_t reach = at + pad - kernel + 1;
  Range r;
  r.first = reach <= 0 ? 0 : (reach + stride - 1) / stride;
  r.last = (at + pad) / stride + 1;
  if (r.last > outputs) r.last = outputs;
  return r;
}

/// Positions [first, last) in the window of output `at` along one axis that are inside the image.
KOKKOS_INLINE_FUNCTION Range window_places(std::int64_t at, std::int64_t kernel,
                                           std::int64_t stride, std::int64_t pad,
                                           std::int64_t inputs) {
  const std::int64_t start = at * stride - pad;
  Range r;
  r.first = start < 0 ? -start : 0;
  r.last = inputs - start < kernel ? inputs - start : kernel;
  return r;
}

KOKKOS_INLINE_FUNCTION Range window_rows(const WindowShape& s, std::int64_t out_h) {
  return window_places(out_h, s.kernel_h, s.stride_h, s.pad_top, s.in.h);
}
KOKKOS_INLINE_FUNCTION Range window_columns(const WindowShape& s, std::int64_t out_w) {
  return window_places(out_w, s.kernel_w, s.stride_w, s.pad_left, s.in.w);
}

/// Calls f(code, offset) for every pixel inside the image in the window of output pixel p. `code`
/// is its row-major index in the window, `offset` is the input offset of the strip's first channel.
template <class F>
KOKKOS_INLINE_FUNCTION void for_window(const WindowShape& s, const Place& p, const F& f) {
  const Range rows = window_rows(s, p.h);
  const Range columns = window_columns(s, p.w);
  const std::int64_t top = p.h * s.stride_h - s.pad_top;
  const std::int64_t left = p.w * s.stride_w - s.pad_left;
  for (std::int64_t r = rows.first; r < rows.last; ++r) {
    for (std::int64_t q = columns.first; q < columns.last; ++q) {
      f(r * s.kernel_w + q, offset(s.in, p.n, top + r, left + q) + p.first);
    }
  }
}

/// Calls f(h, w, offset) for every output pixel whose window contains input pixel p, in ascending
/// order.
template <class F>
KOKKOS_INLINE_FUNCTION void for_windows_of(const WindowShape& s, const Place& p, const F& f) {
  const Range rows = windows_of(p.h, s.kernel_h, s.stride_h, s.pad_top, s.out.h);
  const Range columns = windows_of(p.w, s.kernel_w, s.stride_w, s.pad_left, s.out.w);
  for (std::int64_t h = rows.first; h < rows.last; ++h) {
    for (std::int64_t w = columns.first; w < columns.last; ++w) {
      f(h, w, offset(s.out, p.n, h, w) + p.first);
    }
  }
}

}  // namespace millrace::ops
