// SPDX-License-Identifier: Apache-2.0
//
// How kernels on images divide their work: by pixels and by strips of channels.
#pragma once

#include <cstdint>

#include "core/shape.hpp"
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

}  // namespace millrace::ops
