// SPDX-License-Identifier: Apache-2.0
#include "ops/instantiate.hpp"
#include "ops/pixels.hpp"
#include "ops/pool.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

KOKKOS_INLINE_FUNCTION std::int64_t clamped(std::int64_t c, std::int64_t low, std::int64_t high) {
  return c < low ? low : c > high ? high : c;
}

}  // namespace

template <class T>
void shortcut_pad_forward(const ExecutionSpace& space, const WindowShape& s, std::int64_t before,
                          T* y, const T* x) {
  const auto pixels = KOKKOS_LAMBDA(std::int64_t i) {
    for_pixels(s.out, i, [&](const Place& p) {
      const T* source = x + offset(s.in, p.n, p.h * s.stride_h, p.w * s.stride_w);
      T* target = y + offset(s.out, p.n, p.h, p.w);
      // Channels [first, kept) and [padded, last) are zeros.
      const std::int64_t last = p.first + p.lanes;
      const std::int64_t kept = clamped(before, p.first, last);
      const std::int64_t padded = clamped(before + s.in.c, p.first, last);
      for (std::int64_t c = p.first; c < kept; ++c) target[c] = store_as<T>(0.0f);
      for (std::int64_t c = kept; c < padded; ++c) target[c] = source[c - before];
      for (std::int64_t c = padded; c < last; ++c) target[c] = store_as<T>(0.0f);
    });
  };
  parallel("shortcut", space, work_items(s.batch, s.out), pixels);
}

template <class T>
void shortcut_pad_backward(const ExecutionSpace& space, const WindowShape& s, std::int64_t before,
                           T* dx, const T* dy) {
  const auto pixels = KOKKOS_LAMBDA(std::int64_t i) {
    for_pixels(s.in, i, [&](const Place& p) {
      T* target = dx + offset(s.in, p.n, p.h, p.w) + p.first;
      if (p.h % s.stride_h != 0 || p.w % s.stride_w != 0) {
        for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = store_as<T>(0.0f);
        return;
      }
      const T* source =
          dy + offset(s.out, p.n, p.h / s.stride_h, p.w / s.stride_w) + before + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = source[j];
    });
  };
  parallel("shortcut dx", space, work_items(s.batch, s.in), pixels);
}

MILLRACE_INSTANTIATE(shortcut_pad_forward)
MILLRACE_INSTANTIATE(shortcut_pad_backward)

}  // namespace millrace::ops
