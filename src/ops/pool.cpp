// SPDX-License-Identifier: Apache-2.0
#include "ops/pool.hpp"

#include <limits>

#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

// A work item is one row of pixels with all channels on CPUs, one element on GPUs.
constexpr bool kRows = device::kHostAccessible;
// Number of neighboring channels that are computed together in registers.
constexpr std::int64_t kStrip = kRows ? 64 : 1;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// Channels [first, first + lanes) of one pixel of a batch of images.
struct Place {
  std::int64_t n;
  std::int64_t h;
  std::int64_t w;
  std::int64_t first;
  std::int64_t lanes;
};

std::int64_t work_items(std::int64_t batch, const Shape& shape) {
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

// Batch sizes: all pixels of a 2 x 2 window and of a 3 x 3 one. GPUs use one thread per element.
constexpr int kSmallWindow = kRows ? 4 : 1;
constexpr int kLargeWindow = kRows ? 9 : 1;

template <class T, int N>
struct MaxForward {
  WindowShape s;
  T* y;
  std::uint8_t* winner;
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
        winner[out + j] = static_cast<std::uint8_t>(code[j]);
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

template <class T>
struct MaxBackward {
  WindowShape s;
  T* dx;
  const T* dy;
  const std::uint8_t* winner;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for_strips(s.in, i, [&](const Place& p) {
      float sum[kStrip] = {};
      for_windows_of(s, p, [&](std::int64_t oh, std::int64_t ow, std::int64_t out) {
        const std::int64_t place =
            (p.h + s.pad_top - oh * s.stride_h) * s.kernel_w + (p.w + s.pad_left - ow * s.stride_w);
        const auto code = static_cast<std::int32_t>(place);
        const T* source = dy + out;
        const std::uint8_t* won = winner + out;
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
  }
};

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
void max_pool_forward(const ExecutionSpace& space, const WindowShape& shape, T* y,
                      std::uint8_t* winner, const T* x) {
  const auto run = [&](const auto& forward) {
    parallel("max pool", space, work_items(shape.batch, shape.out), forward);
  };
  if (shape.kernel_h * shape.kernel_w <= kSmallWindow)
    run(MaxForward<T, kSmallWindow>{shape, y, winner, x});
  else
    run(MaxForward<T, kLargeWindow>{shape, y, winner, x});
}

template <class T>
void max_pool_backward(const ExecutionSpace& space, const WindowShape& shape, T* dx, const T* dy,
                       const std::uint8_t* winner) {
  parallel("max pool dx", space, work_items(shape.batch, shape.in),
           MaxBackward<T>{shape, dx, dy, winner});
}

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
  template void max_pool_forward<T>(const ExecutionSpace&, const WindowShape&, T*, std::uint8_t*, \
                                    const T*);                                                    \
  template void max_pool_backward<T>(const ExecutionSpace&, const WindowShape&, T*, const T*,     \
                                     const std::uint8_t*);                                        \
  template void average_pool_forward<T>(const ExecutionSpace&, const WindowShape&, T*, const T*,  \
                                        bool);                                                    \
  template void average_pool_backward<T>(const ExecutionSpace&, const WindowShape&, T*, const T*, \
                                         bool);                                                   \
  template void global_average_forward<T>(const ExecutionSpace&, std::int64_t, const Shape&, T*,  \
                                          const T*);                                              \
  template void global_average_backward<T>(const ExecutionSpace&, std::int64_t, const Shape&, T*, \
                                           const T*);                                             \
  template void shortcut_pad_forward<T>(const ExecutionSpace&, const WindowShape&, std::int64_t,  \
                                        T*, const T*);                                            \
  template void shortcut_pad_backward<T>(const ExecutionSpace&, const WindowShape&, std::int64_t, \
                                         T*, const T*);
MILLRACE_INSTANTIATE(float)
MILLRACE_INSTANTIATE(bfloat16)
MILLRACE_INSTANTIATE(float16)
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
