// SPDX-License-Identifier: Apache-2.0
#include "ops/pool.hpp"

#include <limits>

#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

// A work item is one pixel (all channels) on CPUs, one element on GPUs.
constexpr bool kPixels = device::kHostAccessible;

struct Place {
  std::int64_t n;
  std::int64_t h;
  std::int64_t w;
  std::int64_t first;  ///< channels [first, last)
  std::int64_t last;
};

KOKKOS_INLINE_FUNCTION Place place_of(const Shape& shape, std::int64_t i) {
  Place p;
  if constexpr (kPixels) {
    p.first = 0;
    p.last = shape.c;
  } else {
    p.first = i % shape.c;
    p.last = p.first + 1;
    i /= shape.c;
  }
  p.w = i % shape.w;
  p.h = i / shape.w % shape.h;
  p.n = i / shape.w / shape.h;
  return p;
}

std::int64_t work_items(std::int64_t batch, const Shape& shape) {
  return batch * (kPixels ? shape.pixels() : shape.elements());
}

KOKKOS_INLINE_FUNCTION std::int64_t offset(const Shape& s, std::int64_t n, std::int64_t h,
                                           std::int64_t w) {
  return ((n * s.h + h) * s.w + w) * s.c;
}

/// Windows of input pixel `at` along one axis: outputs [first, last).
struct Range {
  std::int64_t first;
  std::int64_t last;
};
KOKKOS_INLINE_FUNCTION Range windows_of(std::int64_t at, std::int64_t kernel, std::int64_t stride,
                                        std::int64_t pad, std::int64_t outputs) {
  const std::int64_t reach = at + pad - kernel + 1;
  Range r;
  r.first = reach <= 0 ? 0 : (reach + stride - 1) / stride;
  r.last = (at + pad) / stride + 1;
  if (r.last > outputs) r.last = outputs;
  return r;
}

template <class T>
struct MaxForward {
  WindowShape s;
  T* y;
  std::uint8_t* winner;
  const T* x;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(s.out, i);
    const std::int64_t out = offset(s.out, p.n, p.h, p.w);
    bool seen = false;
    for (std::int64_t r = 0; r < s.kernel_h; ++r) {
      for (std::int64_t q = 0; q < s.kernel_w; ++q) {
        const std::int64_t h = p.h * s.stride_h - s.pad_top + r;
        const std::int64_t w = p.w * s.stride_w - s.pad_left + q;
        if (h < 0 || h >= s.in.h || w < 0 || w >= s.in.w) continue;
        const auto code = static_cast<std::uint8_t>(r * s.kernel_w + q);
        const T* source = x + offset(s.in, p.n, h, w);
        for (std::int64_t c = p.first; c < p.last; ++c) {
          // A NaN that came first is kept, so that divergence is not hidden.
          const bool better = !seen || to_float(source[c]) > to_float(y[out + c]) ||
                              to_float(source[c]) != to_float(source[c]);
          if (better) y[out + c] = source[c];
          if (better && winner != nullptr) winner[out + c] = code;
        }
        seen = true;
      }
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
    const Place p = place_of(s.in, i);
    const std::int64_t in = offset(s.in, p.n, p.h, p.w);
    const Range rows = windows_of(p.h, s.kernel_h, s.stride_h, s.pad_top, s.out.h);
    const Range columns = windows_of(p.w, s.kernel_w, s.stride_w, s.pad_left, s.out.w);
    constexpr std::int64_t kStrip = 64;
    for (std::int64_t c0 = p.first; c0 < p.last; c0 += kStrip) {
      const std::int64_t lanes = p.last - c0 < kStrip ? p.last - c0 : kStrip;
      float sum[kStrip] = {};
      for (std::int64_t oh = rows.first; oh < rows.last; ++oh) {
        for (std::int64_t ow = columns.first; ow < columns.last; ++ow) {
          const std::int64_t place = (p.h + s.pad_top - oh * s.stride_h) * s.kernel_w +
                                     (p.w + s.pad_left - ow * s.stride_w);
          const auto code = static_cast<std::uint8_t>(place);
          const std::int64_t out = offset(s.out, p.n, oh, ow) + c0;
          for (std::int64_t j = 0; j < lanes; ++j) {
            sum[j] += winner[out + j] == code ? to_float(dy[out + j]) : 0.0f;
          }
        }
      }
      for (std::int64_t j = 0; j < lanes; ++j) dx[in + c0 + j] = store_as<T>(sum[j]);
    }
  }
};

/// Pixels that an average divides by.
KOKKOS_INLINE_FUNCTION float divisor(const WindowShape& s, std::int64_t oh, std::int64_t ow,
                                     bool count_padding) {
  if (count_padding) return static_cast<float>(s.kernel_h * s.kernel_w);
  const std::int64_t top = oh * s.stride_h - s.pad_top;
  const std::int64_t left = ow * s.stride_w - s.pad_left;
  const std::int64_t bottom = top + s.kernel_h < s.in.h ? top + s.kernel_h : s.in.h;
  const std::int64_t right = left + s.kernel_w < s.in.w ? left + s.kernel_w : s.in.w;
  return static_cast<float>((bottom - (top > 0 ? top : 0)) * (right - (left > 0 ? left : 0)));
}

template <class T>
struct AverageForward {
  WindowShape s;
  T* y;
  const T* x;
  bool count_padding;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(s.out, i);
    const std::int64_t out = offset(s.out, p.n, p.h, p.w);
    const float inverse = 1.0f / divisor(s, p.h, p.w, count_padding);
    for (std::int64_t c = p.first; c < p.last; ++c) {
      float sum = 0.0f;
      for (std::int64_t r = 0; r < s.kernel_h; ++r) {
        for (std::int64_t q = 0; q < s.kernel_w; ++q) {
          const std::int64_t h = p.h * s.stride_h - s.pad_top + r;
          const std::int64_t w = p.w * s.stride_w - s.pad_left + q;
          if (h < 0 || h >= s.in.h || w < 0 || w >= s.in.w) continue;
          sum += to_float(x[offset(s.in, p.n, h, w) + c]);
        }
      }
      y[out + c] = store_as<T>(sum * inverse);
    }
  }
};

template <class T>
struct AverageBackward {
  WindowShape s;
  T* dx;
  const T* dy;
  bool count_padding;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(s.in, i);
    const std::int64_t in = offset(s.in, p.n, p.h, p.w);
    const Range rows = windows_of(p.h, s.kernel_h, s.stride_h, s.pad_top, s.out.h);
    const Range columns = windows_of(p.w, s.kernel_w, s.stride_w, s.pad_left, s.out.w);
    for (std::int64_t c = p.first; c < p.last; ++c) {
      float sum = 0.0f;
      for (std::int64_t oh = rows.first; oh < rows.last; ++oh) {
        for (std::int64_t ow = columns.first; ow < columns.last; ++ow) {
          sum += to_float(dy[offset(s.out, p.n, oh, ow) + c]) / divisor(s, oh, ow, count_padding);
        }
      }
      dx[in + c] = store_as<T>(sum);
    }
  }
};

template <class T>
struct GlobalForward {
  Shape in;
  T* y;
  const T* x;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(Shape{1, 1, in.c}, i);
    const float inverse = 1.0f / static_cast<float>(in.pixels());
    constexpr std::int64_t kStrip = 64;
    for (std::int64_t c0 = p.first; c0 < p.last; c0 += kStrip) {
      const std::int64_t lanes = p.last - c0 < kStrip ? p.last - c0 : kStrip;
      float sum[kStrip] = {};
      const T* source = x + p.n * in.elements() + c0;
      for (std::int64_t k = 0; k < in.pixels(); ++k) {
        for (std::int64_t j = 0; j < lanes; ++j) sum[j] += to_float(source[k * in.c + j]);
      }
      T* target = y + p.n * in.c + c0;
      for (std::int64_t j = 0; j < lanes; ++j) target[j] = store_as<T>(sum[j] * inverse);
    }
  }
};

template <class T>
struct GlobalBackward {
  Shape in;
  T* dx;
  const T* dy;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(in, i);
    const float inverse = 1.0f / static_cast<float>(in.pixels());
    T* target = dx + offset(in, p.n, p.h, p.w);
    const T* source = dy + p.n * in.c;
    for (std::int64_t c = p.first; c < p.last; ++c) {
      target[c] = store_as<T>(to_float(source[c]) * inverse);
    }
  }
};

template <class T>
struct ShortcutForward {
  WindowShape s;
  std::int64_t before;
  T* y;
  const T* x;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(s.out, i);
    const T* source = x + offset(s.in, p.n, p.h * s.stride_h, p.w * s.stride_w);
    T* target = y + offset(s.out, p.n, p.h, p.w);
    for (std::int64_t c = p.first; c < p.last; ++c) {
      const std::int64_t k = c - before;
      target[c] = k >= 0 && k < s.in.c ? source[k] : store_as<T>(0.0f);
    }
  }
};

template <class T>
struct ShortcutBackward {
  WindowShape s;
  std::int64_t before;
  T* dx;
  const T* dy;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Place p = place_of(s.in, i);
    T* target = dx + offset(s.in, p.n, p.h, p.w);
    const bool kept = p.h % s.stride_h == 0 && p.w % s.stride_w == 0;
    const T* source = dy + offset(s.out, p.n, p.h / s.stride_h, p.w / s.stride_w) + before;
    for (std::int64_t c = p.first; c < p.last; ++c) {
      target[c] = kept ? source[c] : store_as<T>(0.0f);
    }
  }
};

}  // namespace

template <class T>
void max_pool_forward(const ExecutionSpace& space, const WindowShape& shape, T* y,
                      std::uint8_t* winner, const T* x) {
  parallel("max pool", space, work_items(shape.batch, shape.out),
           MaxForward<T>{shape, y, winner, x});
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

#define MILLRACE_INSTANTIATE(T)                                                                    \
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
#undef MILLRACE_INSTANTIATE

}  // namespace millrace::ops
