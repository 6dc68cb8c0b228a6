// SPDX-License-Identifier: Apache-2.0
#include "ops/instantiate.hpp"
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

}  // namespace

template <class T>
void average_pool_forward(const ExecutionSpace& space, const WindowShape& s, T* y, const T* x,
                          bool count_padding) {
  const auto pixel = KOKKOS_LAMBDA(std::int64_t i) {
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
  };
  parallel("average pool", space, work_items(s.batch, s.out), pixel);
}

template <class T>
void average_pool_backward(const ExecutionSpace& space, const WindowShape& s, T* dx, const T* dy,
                           bool count_padding) {
  const auto pixel = KOKKOS_LAMBDA(std::int64_t i) {
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
  };
  parallel("average pool dx", space, work_items(s.batch, s.in), pixel);
}

template <class T>
void global_average_forward(const ExecutionSpace& space, std::int64_t batch, const Shape& in, T* y,
                            const T* x) {
  const auto sample = KOKKOS_LAMBDA(std::int64_t i) {
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
  };
  parallel("global pool", space, work_items(batch, Shape{1, 1, in.c}), sample);
}

template <class T>
void global_average_backward(const ExecutionSpace& space, std::int64_t batch, const Shape& in,
                             T* dx, const T* dy) {
  const auto pixel = KOKKOS_LAMBDA(std::int64_t i) {
    const float inverse = 1.0f / static_cast<float>(in.pixels());
    for_pixels(in, i, [&](const Place& p) {
      T* target = dx + offset(in, p.n, p.h, p.w) + p.first;
      const T* source = dy + p.n * in.c + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j)
        target[j] = store_as<T>(to_float(source[j]) * inverse);
    });
  };
  parallel("global pool dx", space, work_items(batch, in), pixel);
}

MILLRACE_INSTANTIATE(average_pool_forward)
MILLRACE_INSTANTIATE(average_pool_backward)
MILLRACE_INSTANTIATE(global_average_forward)
MILLRACE_INSTANTIATE(global_average_backward)

}  // namespace millrace::ops
