// SPDX-License-Identifier: Apache-2.0
#include "ops/pool.hpp"

#include <limits>

#include "core/error.hpp"
#include "ops/pool_windows.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Pixels of one window that are compared in one pass over the channels, so that the maxima stay in
/// registers.
template <int N>
struct Batch {
  std::int32_t code[N];    ///< index in the window
  std::int64_t offset[N];  ///< of the first channel of the strip
  int count = 0;

  KOKKOS_INLINE_FUNCTION void add(std::int64_t place, std::int64_t at) {
    code[count] = static_cast<std::int32_t>(place);
    offset[count] = at;
    ++count;
  }
  /// Fills the rest of the batch with the last pixel.
  KOKKOS_INLINE_FUNCTION void fill() {
    for (int k = count; k < N; ++k) {
      code[k] = code[count - 1];
      offset[k] = offset[count - 1];
    }
  }
};

// Batch sizes: all pixels of a 2 x 2 window and of a 3 x 3 one. GPUs use one thread per element.
constexpr int kSmallWindow = kRows ? 4 : 1;
constexpr int kLargeWindow = kRows ? 9 : 1;

template <class T, class W, int N>
struct MaxForward {
  WindowShape s;
  T* y;
  W* winner;
  const T* x;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.out, i, [&](const Place& p) {
      float best[kStrip];
      std::int32_t code[kStrip];
      const std::int64_t first =
          window_rows(s, p.h).first * s.kernel_w + window_columns(s, p.w).first;
      for (std::int64_t j = 0; j < kStrip; ++j) {
        best[j] = kLowest;
        code[j] = static_cast<std::int32_t>(first);
      }
      Batch<N> batch;
      for_window(s, p, [&](std::int64_t place, std::int64_t in) {
        batch.add(place, in);
        if (batch.count < N) return;
        take_best(batch, p.lanes, best, code);
        batch.count = 0;
      });
      if (batch.count > 0) {
        batch.fill();  // comparing the last pixel again does not change the result
        take_best(batch, p.lanes, best, code);
      }
      const std::int64_t out = offset(s.out, p.n, p.h, p.w) + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) y[out + j] = store_exact<T>(best[j]);
      if (winner == nullptr) return;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) {
        winner[out + j] = static_cast<W>(code[j]);
      }
    });
  }

  KOKKOS_INLINE_FUNCTION void take_best(const Batch<N>& batch, std::int64_t lanes, float* best,
                                        std::int32_t* code) const {
    MILLRACE_SIMD
    for (std::int64_t j = 0; j < lanes; ++j) {
      float best_here = best[j];
      std::int32_t code_here = code[j];
      for (int k = 0; k < N; ++k) {
        const float value = to_float(x[batch.offset[k] + j]);
        // A NaN always wins, so that divergence is not hidden. `|` instead of `||` allows vector
        // code.
        const bool better = (value > best_here) | (value != value);
        best_here = better ? value : best_here;
        code_here = better ? batch.code[k] : code_here;
      }
      best[j] = best_here;
      code[j] = code_here;
    }
  }
};

/// Whether W has a number for every position in the window.
template <class W>
bool can_name_positions(const WindowShape& s) {
  return s.kernel_h * s.kernel_w - 1 <= static_cast<std::int64_t>(std::numeric_limits<W>::max());
}

/// Number of pixels in an average.
KOKKOS_INLINE_FUNCTION float divisor(const WindowShape& s, std::int64_t oh, std::int64_t ow,
                                     bool count_padding) {
  if (count_padding) return static_cast<float>(s.kernel_h * s.kernel_w);
  const Range rows = window_rows(s, oh);
  const Range columns = window_columns(s, ow);
  return static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
}

KOKKOS_INLINE_FUNCTION std::int64_t clamped(std::int64_t c, std::int64_t low, std::int64_t high) {
  return c < low ? low : c > high ? high : c;
}

}  // namespace

template <class T, class W>
void max_pool_forward(const ExecutionSpace& space, const WindowShape& shape, T* y, W* winner,
                      const T* x) {
  MILLRACE_ASSERT(winner == nullptr || can_name_positions<W>(shape));
  const auto run = [&](const auto& forward) {
    parallel("max pool", space, work_items(shape.batch, shape.out), forward);
  };
  if (shape.kernel_h * shape.kernel_w <= kSmallWindow)
    run(MaxForward<T, W, kSmallWindow>{shape, y, winner, x});
  else
    run(MaxForward<T, W, kLargeWindow>{shape, y, winner, x});
}

template <class T, class W>
void max_pool_backward(const ExecutionSpace& space, const WindowShape& s, T* dx, const T* dy,
                       const W* winner) {
  MILLRACE_ASSERT(can_name_positions<W>(s));
  const auto pixels = KOKKOS_LAMBDA(std::int64_t i) {
    for_strips(s.in, i, [&](const Place& p) {
      float sum[kStrip] = {};
      for_windows_of(s, p, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
        const std::int64_t place =
            (p.h + s.pad_top - oh * s.stride_h) * s.kernel_w + (p.w + s.pad_left - ow * s.stride_w);
        const auto code = static_cast<std::int32_t>(place);
        const T* source = dy + out;
        const W* won = winner + out;
        MILLRACE_SIMD
        for (std::int64_t j = 0; j < p.lanes; ++j) {
          const std::int32_t won_by = won[j];
          const float gradient = to_float(source[j]);  // read unconditionally, for vector code
          sum[j] += won_by == code ? gradient : 0.0f;
        }
      });
      T* target = dx + offset(s.in, p.n, p.h, p.w) + p.first;
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < p.lanes; ++j) target[j] = store_as<T>(sum[j]);
    });
  };
  parallel("max pool dx", space, work_items(s.batch, s.in), pixels);
}

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

MILLRACE_INSTANTIATE_WITH(max_pool_forward, std::uint8_t)
MILLRACE_INSTANTIATE_WITH(max_pool_forward, std::int32_t)
MILLRACE_INSTANTIATE_WITH(max_pool_backward, std::uint8_t)
MILLRACE_INSTANTIATE_WITH(max_pool_backward, std::int32_t)
MILLRACE_INSTANTIATE(average_pool_forward)
MILLRACE_INSTANTIATE(average_pool_backward)
MILLRACE_INSTANTIATE(global_average_forward)
MILLRACE_INSTANTIATE(global_average_backward)
MILLRACE_INSTANTIATE(shortcut_pad_forward)
MILLRACE_INSTANTIATE(shortcut_pad_backward)

}  // namespace millrace::ops
