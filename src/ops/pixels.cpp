// SPDX-License-Identifier: Apache-2.0
//
// Ops on pixels that have no windows: averages over all pixels of a sample, and shortcuts that keep
// some. Bytes are those that a kernel must move to and from memory if elements have 16 bits.
#include "ops/inlined_norm.hpp"
#include "ops/pixel_sums.hpp"
#include "ops/pool.hpp"
#include "ops/pool_windows.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// Bytes: 2 for each element of x.
template <class T, class Input>
struct GlobalAverageForward {
  std::int64_t pixels;
  std::int64_t channels;
  float inverse;
  T* y;
  const T* x;
  InlinedNorm norm;

  // On cores: a work item is a sample and a strip of channels that are summed in registers.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t strips() const {
    return (channels + kStrip - 1) / kStrip;
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Quotient sample = divide(i, strips());
    const std::int64_t first = sample.remainder * kStrip;
    const std::int64_t lanes = channels - first < kStrip ? channels - first : kStrip;
    float sum[kStrip] = {};
    const T* source = x + sample.quotient * pixels * channels + first;
    for (std::int64_t p = 0; p < pixels; ++p, source += channels) {
      MILLRACE_SIMD
      for (std::int64_t j = 0; j < lanes; ++j) sum[j] += to_float(source[j]);
    }
    T* target = y + sample.quotient * channels + first;
    MILLRACE_SIMD
    for (std::int64_t j = 0; j < lanes; ++j) target[j] = store_as<T>(sum[j] * inverse);
  }

  // On accelerators, for PixelSums.
  static constexpr int kPixels = 4;
  template <int W>
  class Strip {
   public:
    KOKKOS_INLINE_FUNCTION Strip(const GlobalAverageForward& kernel, std::int64_t sample,
                                 std::int64_t c)
        : k_(kernel), at_(sample * kernel.channels + c), values_(kernel.norm, sample, c) {}
    KOKKOS_INLINE_FUNCTION void add(float (&sum)[W], std::int64_t offset, std::int64_t step,
                                    int count) const {
      const PixelsIn<W, kPixels, T> in(k_.x + offset, step, count);
      for (int n = 0; n < kPixels; ++n)
        for (int j = 0; j < W; ++j) sum[j] += n < count ? values_.of(j, in.at(n, j)) : 0.0f;
    }
    KOKKOS_INLINE_FUNCTION void finish(const float (&sum)[W]) const {
      LanesOut<W, T> out(k_.y + at_);
      for (int j = 0; j < W; ++j) out.set(j, store_as<T>(sum[j] * k_.inverse));
    }

   private:
    const GlobalAverageForward& k_;
    std::int64_t at_;
    typename Input::template Values<W, T> values_;
  };
};

/// dx of a row of pixels on cores, of every `step`-th pixel of a sample on accelerators, so that dy
/// is read once for several pixels. Bytes: 2 for each element of dx.
template <class T>
struct GlobalAverageBackward {
  static constexpr std::int64_t kPixels = 8;  ///< of a work item on GPUs
  PixelItems items;
  Shape in;
  std::int64_t step;
  float inverse;
  T* dx;
  const T* dy;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    if constexpr (kRows) return run_row(i);
    items.for_pixels(i, [&]<int W>(const Place& p) {
      const LanesIn<W, T> source(dy + p.n * in.c + p.first);
      for (std::int64_t at = p.h * in.w + p.w; at < in.pixels(); at += step) {
        LanesOut<W, T> out(dx + (p.n * in.pixels() + at) * in.c + p.first);
        for (int j = 0; j < W; ++j) out.set(j, store_as<T>(to_float(source[j]) * inverse));
      }
    });
  }
  KOKKOS_INLINE_FUNCTION void run_row(std::int64_t i) const {
    const T* const source = dy + i / in.h * in.c;
    T* target = dx + i * in.w * in.c;
    for (std::int64_t w = 0; w < in.w; ++w, target += in.c) {
      MILLRACE_SIMD
      for (std::int64_t c = 0; c < in.c; ++c)
        target[c] = store_as<T>(to_float(source[c]) * inverse);
    }
  }
};

/// Some pixels of x with zeros around their channels. Bytes: 2 for each element of y, and 2 for
/// each of x that it has.
template <class T>
struct ShortcutForward {
  PixelItems items;
  WindowShape s;
  std::int64_t before;
  T* y;
  const T* x;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    items.for_pixels(i, [&]<int W>(const Place& p) {
      const T* source = x + offset(s.in, p.n, p.h * s.stride_h, p.w * s.stride_w);
      T* target = y + offset(s.out, p.n, p.h, p.w);
      if constexpr (kRows) {
        for (std::int64_t c = 0; c < before; ++c) target[c] = store_as<T>(0.0f);
        for (std::int64_t c = 0; c < s.in.c; ++c) target[before + c] = source[c];
        for (std::int64_t c = before + s.in.c; c < s.out.c; ++c) target[c] = store_as<T>(0.0f);
      } else {
        const std::int64_t c = p.first - before;
        const bool kept = c >= 0 && c < s.in.c;
        const LanesIn<W, T> values(source + (kept ? c : 0));
        LanesOut<W, T> out(target + p.first);
        for (int j = 0; j < W; ++j) out.set(j, kept ? values[j] : store_as<T>(0.0f));
      }
    });
  }
};

template <class T>
struct ShortcutBackward {
  PixelItems items;
  WindowShape s;
  FastDivide rows;
  FastDivide columns;
  std::int64_t before;
  T* dx;
  const T* dy;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    items.for_pixels(i, [&]<int W>(const Place& p) {
      LanesOut<W, T> out(dx + offset(s.in, p.n, p.h, p.w) + p.first);
      const auto h = rows(p.h);
      const auto w = columns(p.w);
      if (h.remainder != 0 || w.remainder != 0) {
        for (int j = 0; j < p.lanes; ++j) out.set(j, store_as<T>(0.0f));
        return;
      }
      const LanesIn<W, T> source(dy + offset(s.out, p.n, h.quotient, w.quotient) + before +
                                 p.first);
      MILLRACE_SIMD
      for (int j = 0; j < p.lanes; ++j) out.set(j, source[j]);
    });
  }
};

[[nodiscard]] float reciprocal(std::int64_t pixels) { return 1.0f / static_cast<float>(pixels); }

}  // namespace

template <class T>
void global_average_forward(const ExecutionSpace& space, std::int64_t batch, const Shape& in, T* y,
                            const T* x, const InlinedNorm& norm) {
  const std::int64_t pixels = in.pixels();
  dispatch_input(norm, [&]<class Input>() {
    const GlobalAverageForward<T, Input> kernel{pixels, in.c, reciprocal(pixels), y, x, norm};
    if constexpr (device::kOnCores)
      parallel("global pool", space, batch * kernel.strips(), kernel);
    else
      sum_pixels("global pool", space, ScaleShape{batch, pixels, in.c},
                 are_aligned(y, x) && norm.is_aligned(), kernel);
  });
}

template <class T>
void global_average_backward(const ExecutionSpace& space, std::int64_t batch, const Shape& in,
                             T* dx, const T* dy) {
  using Kernel = GlobalAverageBackward<T>;
  const std::int64_t step = (in.pixels() + Kernel::kPixels - 1) / Kernel::kPixels;
  const Shape items = device::kOnCores ? in : Shape{1, step, in.c};
  const PixelItems all(batch, items, whole_strips(in.c, dx, dy));
  parallel("global pool dx", space, all.count(),
           Kernel{all, in, step, reciprocal(in.pixels()), dx, dy});
}

template <class T>
void shortcut_pad_forward(const ExecutionSpace& space, const WindowShape& s, std::int64_t before,
                          T* y, const T* x) {
  const bool whole = whole_strips(s.out.c, y, x) && s.in.c % kStrip == 0 && before % kStrip == 0;
  const PixelItems items(s.batch, s.out, whole);
  parallel("shortcut", space, items.count(), ShortcutForward<T>{items, s, before, y, x});
}

template <class T>
void shortcut_pad_backward(const ExecutionSpace& space, const WindowShape& s, std::int64_t before,
                           T* dx, const T* dy) {
  const bool whole = whole_strips(s.in.c, dx, dy) && s.out.c % kStrip == 0 && before % kStrip == 0;
  const PixelItems items(s.batch, s.in, whole);
  parallel("shortcut dx", space, items.count(),
           ShortcutBackward<T>{items, s, FastDivide(s.stride_h), FastDivide(s.stride_w), before, dx,
                               dy});
}

MILLRACE_INSTANTIATE(global_average_forward)
MILLRACE_INSTANTIATE(global_average_backward)
MILLRACE_INSTANTIATE(shortcut_pad_forward)
MILLRACE_INSTANTIATE(shortcut_pad_backward)

}  // namespace millrace::ops
