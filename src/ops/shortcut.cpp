// SPDX-License-Identifier: Apache-2.0
#include "ops/pixels.hpp"
#include "ops/pool.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

template <class T>
struct ShortcutForward {
  WindowShape s;
  std::int64_t before;
  T* y;
  const T* x;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
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
  }
  KOKKOS_INLINE_FUNCTION static std::int64_t clamped(std::int64_t c, std::int64_t low,
                                                     std::int64_t high) {
    return c < low ? low : c > high ? high : c;
  }
};

template <class T>
struct ShortcutBackward {
  WindowShape s;
  std::int64_t before;
  T* dx;
  const T* dy;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
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
  }
};

}  // namespace

template <class T>
void shortcut_pad_forward(const ExecutionSpace& space, const WindowShape& shape,
                          std::int64_t channels_before, T* y, const T* x) {
  parallel("shortcut", space, work_items(shape.batch, shape.out),
           ShortcutForward<T>{shape, channels_before, y, x});
}

template <class T>
void shortcut_pad_backward(const ExecutionSpace& space, const WindowShape& shape,
                           std::int64_t channels_before, T* dx, const T* dy) {
  parallel("shortcut dx", space, work_items(shape.batch, shape.in),
           ShortcutBackward<T>{shape, channels_before, dx, dy});
}

#define MILLRACE_INSTANTIATE(T)                                                                   \
  template void shortcut_pad_forward<T>(const ExecutionSpace&, const WindowShape&, std::int64_t,  \
                                        T*, const T*);                                            \
  template void shortcut_pad_backward<T>(const ExecutionSpace&, const WindowShape&, std::int64_t, \
                                         T*, const T*);
MILLRACE_INSTANTIATE(float)
MILLRACE_INSTANTIATE(bfloat16)
MILLRACE_INSTANTIATE(float16)
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
