// SPDX-License-Identifier: Apache-2.0
#include "ops/pool.hpp"
#include "ops/pool_windows.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Number of pixels in an average.
KOKKOS_INLINE_FUNCTION float divisor(const WindowShape& s, std::int64_t oh, std::int64_t ow,
                                     bool count_padding) {
  if (count_padding) return static_cast<float>(s.kernel_h * s.kernel_w);
  const Range rows = window_rows(s, oh);
  const Range columns = window_columns(s, ow);
  return static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
}

template <class T>
struct AverageForward {
  WindowShape s;
  T* y;
  const T* x;
  bool count_padding;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.out, i, [&](const Place& p) {
      float sum[kStrip] = {};
      for_window(s, p, [&](std::int64_t, std::int64_t in) {
        const T* source = x + in;
        MILLRACE_SIMD
        for (std::int64_t j = 0; j < p.lanes; ++j) sum[j] += to_float(source[j]);
      });
      const float inverse = 1.0f / divisor(s, p.h, p.w, count_padding);
      T* target = y + offset(s.out, p.n, p.h, p.w) + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = store_as<T>(sum[j] * inverse);
    });
  }
};

template <class T>
struct AverageBackward {
  WindowShape s;
  T* dx;
  const T* dy;
  bool count_padding;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.in, i, [&](const Place& p) {
      float sum[kStrip] = {};
      for_windows_of(s, p, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
        const float pixels = divisor(s, oh, ow, count_padding);
        const T* source = dy + out;
        MILLRACE_SIMD
        for (std::int64_t j = 0; j < p.lanes; ++j) sum[j] += to_float(source[j]) / pixels;
      });
      T* target = dx + offset(s.in, p.n, p.h, p.w) + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = store_as<T>(sum[j]);
    });
  }
};

template <class T>
struct GlobalForward {
  Shape in;
  T* y;
  const T* x;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float inverse = 1.0f / static_cast<float>(in.pixels());
    for_strips(Shape{1, 1, in.c}, i, [&](const Place& p) {
      float sum[kStrip] = {};
      const T* source = x + p.n * in.elements() + p.first;
      for (std::int64_t k = 0; k < in.pixels(); ++k, source += in.c) {
        MILLRACE_SIMD
        for (std::int64_t j = 0; j < p.lanes; ++j) sum[j] += to_float(source[j]);
      }
      T* target = y + p.n * in.c + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = store_as<T>(sum[j] * inverse);
    });
  }
};

template <class T>
struct GlobalBackward {
  Shape in;
  T* dx;
  const T* dy;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float inverse = 1.0f / static_cast<float>(in.pixels());
    for_pixels(in, i, [&](const Place& p) {
      T* target = dx + offset(in, p.n, p.h, p.w) + p.first;
      const T* source = dy + p.n * in.c + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) {
        target[j] = store_as<T>(to_float(source[j]) * inverse);
      }
    });
  }
};

}  // namespace

template <class T>
void average_pool_forward(const ExecutionSpace& space, const WindowShape& shape, T* y, const T* x,
                          bool count_padding) {
  parallel("average pool", space, work_items(shape.batch, shape.out),
           AverageForward<T>{shape, y, x, count_padding});
}

template <class T>
void average_pool_backward(const ExecutionSpace& space, const WindowShape& shape, T* dx,
                           const T* dy, bool count_padding) {
  parallel("average pool dx", space, work_items(shape.batch, shape.in),
           AverageBackward<T>{shape, dx, dy, count_padding});
}

template <class T>
void global_average_forward(const ExecutionSpace& space, std::int64_t batch, const Shape& in, T* y,
                            const T* x) {
  parallel("global pool", space, work_items(batch, Shape{1, 1, in.c}), GlobalForward<T>{in, y, x});
}

template <class T>
void global_average_backward(const ExecutionSpace& space, std::int64_t batch, const Shape& in,
                             T* dx, const T* dy) {
  parallel("global pool dx", space, work_items(batch, in), GlobalBackward<T>{in, dx, dy});
}

#define MILLRACE_INSTANTIATE(T)                                                                   \
  template void average_pool_forward<T>(const ExecutionSpace&, const WindowShape&, T*, const T*,  \
                                        bool);                                                    \
  template void average_pool_backward<T>(const ExecutionSpace&, const WindowShape&, T*, const T*, \
                                         bool);                                                   \
  template void global_average_forward<T>(const ExecutionSpace&, std::int64_t, const Shape&, T*,  \
                                          const T*);                                              \
  template void global_average_backward<T>(const ExecutionSpace&, std::int64_t, const Shape&, T*, \
                                           const T*);
MILLRACE_INSTANTIATE(float)
MILLRACE_INSTANTIATE(bfloat16)
MILLRACE_INSTANTIATE(float16)
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
