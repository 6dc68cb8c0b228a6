// SPDX-License-Identifier: Apache-2.0
//
// Bytes below are those that a kernel must move to and from memory if elements have 16 bits and a
// position one byte. Pixels and windows that work items share come from the cache.
#include "ops/pool.hpp"

#include <bit>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "ops/pool_windows.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {
namespace {

using device::ExecutionSpace;
using device::parallel;

/// How many pixels the windows of an average count.
struct Average {
  bool equal;    ///< all windows as many
  float number;  ///< pixels of a window in the image's middle
  float its_reciprocal;

  Average(const WindowShape& s, const Windows& windows, bool padding)
      : equal(padding || (windows.h.all_inside() && windows.w.all_inside())),
        number(static_cast<float>(s.kernel_h * s.kernel_w)),
        its_reciprocal(1.0f / number) {}

  [[nodiscard]] KOKKOS_INLINE_FUNCTION float pixels(const Windows& s, std::int32_t h,
                                                    std::int32_t w) const {
    if (equal) return number;
    const Range rows = s.h.inside(h);
    const Range columns = s.w.inside(w);
    return static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION float reciprocal(const Windows& s, std::int32_t h,
                                                        std::int32_t w) const {
    return equal ? its_reciprocal : 1.0f / pixels(s, h, w);
  }
};

/// Calls f.template operator()<kColumns>() for windows of 2x2 and 3x3, otherwise with 0.
template <class F>
void dispatch_window(const WindowShape& s, const F& f) {
  if (s.kernel_h == s.kernel_w && s.kernel_w == 2) return f.template operator()<2>();
  if (s.kernel_h == s.kernel_w && s.kernel_w == 3) return f.template operator()<3>();
  f.template operator()<0>();
}

/// Places of a window that are read before the first one is used, so that all are on their way and
/// results stay in registers: the whole window, or a piece of a larger one.
template <int kColumns>
inline constexpr int kPlaces = kColumns > 0 ? kColumns* kColumns : 9;

/// Bytes: 2 for each element of x, 3 for each of y. An inlined norm, whose activation is a ReLU,
/// adds none.
template <class T, class Position, int kColumns, class Input>
struct MaxForward {
  /// Of 16-bit types small windows fit into few registers.
  [[maybe_unused]] static constexpr int kThreadsAtOnce =
      (sizeof(T) == 2 && kColumns > 0 ? 1152 : 768) - (Input::kInlined ? 128 : 0);
  static constexpr int kCount = kPlaces<kColumns>;
  template <int W>
  using Values = typename Input::template Values<W, T>;
  PixelItems items;
  Windows s;
  T* y;
  Position* winner;
  const T* x;
  InlinedNorm norm;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    items.for_strips(i, [&]<int W>(const Place& p) {
      float best[W];
      std::int32_t code[W];
      const Values<W> values(norm, p.n, p.first);
      take_best<W, true>(p, values, 0, best, code);
      if constexpr (kColumns == 0)
        for (int first = kCount; first < s.places(); first += kCount)
          take_best<W, false>(p, values, first, best, code);
      const std::int64_t at = s.out_image(p) + s.out_pixel(p.h, p.w);
      LanesOut<W, T> out(y + at);
      MILLRACE_SIMD
      for (int j = 0; j < p.lanes; ++j) out.set(j, store_exact<T>(best[j]));
      if (winner == nullptr) return;
      LanesOut<W, Position> won(winner + at);
      MILLRACE_SIMD
      for (int j = 0; j < p.lanes; ++j) won.set(j, static_cast<Position>(code[j]));
    });
  }

  /// Compares kCount places from `from` on; `kFirst`: they are the first ones. Comparing a place
  /// again does not change the result.
  template <int W, bool kFirst>
  KOKKOS_INLINE_FUNCTION void take_best(const Place& p, const Values<W>& values, std::int32_t from,
                                        float* best, std::int32_t* code) const {
    const auto places = WindowPlaces<kCount>::template from<kColumns>(s, p, from);
    const StripsAt<W, T, kCount> pixels(x + s.in_image(p), places.offset);
    MILLRACE_SIMD
    for (int j = 0; j < p.lanes; ++j) {
      float best_here = kFirst ? values.of(j, to_float(pixels.at(0, j))) : best[j];
      std::int32_t code_here = kFirst ? places.code[0] : code[j];
      for (int k = kFirst ? 1 : 0; k < kCount; ++k) {
        // Only the first place needs the ReLU: what is above its result is positive.
        const float value = values.before_fn(j, to_float(pixels.at(k, j)));
        // A NaN always wins, so that divergence is not hidden. `|` instead of `||` allows vector
        // code.
        const bool better = (value > best_here) | (value != value);
        best_here = better ? value : best_here;
        code_here = better ? places.code[k] : code_here;
      }
      best[j] = best_here;
      code[j] = code_here;
    }
  }
};

/// Whether Position has a number for every position in the window.
template <class Position>
bool can_name_positions(const WindowShape& s) {
  return s.kernel_h * s.kernel_w - 1 <=
         static_cast<std::int64_t>(std::numeric_limits<Position>::max());
}

/// Bytes: 2 for each element of x and of y.
template <class T, int kColumns>
struct AverageForward {
  static constexpr int kCount = kPlaces<kColumns>;
  PixelItems items;
  Windows s;
  Average average;
  T* y;
  const T* x;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    items.for_strips(i, [&]<int W>(const Place& p) {
      float sum[W] = {};
      add<W>(p, 0, sum);
      if constexpr (kColumns == 0)
        for (int first = kCount; first < s.places(); first += kCount) add<W>(p, first, sum);
      const float inverse = average.reciprocal(s, p.h, p.w);
      LanesOut<W, T> out(y + s.out_image(p) + s.out_pixel(p.h, p.w));
      MILLRACE_SIMD
      for (int j = 0; j < p.lanes; ++j) out.set(j, store_as<T>(sum[j] * inverse));
    });
  }

  /// Adds kCount places from `from` on.
  template <int W>
  KOKKOS_INLINE_FUNCTION void add(const Place& p, std::int32_t from, float* sum) const {
    const auto places = WindowPlaces<kCount>::template from<kColumns>(s, p, from);
    const StripsAt<W, T, kCount> pixels(x + s.in_image(p), places.offset);
    MILLRACE_SIMD
    for (int j = 0; j < p.lanes; ++j) {
      float total = sum[j];
      for (int k = 0; k < kCount; ++k) total += places.inside[k] ? to_float(pixels.at(k, j)) : 0.0f;
      sum[j] = total;
    }
  }
};

/// What a window gives its pixels: the gradient of the one that won.
template <class T, class Position>
struct MaxGradient {
  /// Windows of so many columns, and smaller ones, have kernels in blocks.
  static constexpr int kMostInBlocks = sizeof(Position) == 1 ? 3 : 0;
  const T* dy;
  const Position* winner;

  template <int W>
  class Window {
   public:
    KOKKOS_INLINE_FUNCTION Window(const MaxGradient& from, const Windows&, std::int32_t,
                                  std::int32_t, std::int64_t at)
        : dy_(from.dy + at), won_(from.winner + at) {}
    [[nodiscard]] KOKKOS_INLINE_FUNCTION float at(int j, std::int32_t code) const {
      const std::int32_t won_by = won_[j];
      const float gradient = to_float(dy_[j]);  // read unconditionally, for vector code
      return won_by == code ? gradient : 0.0f;
    }

   private:
    LanesIn<W, T> dy_;
    LanesIn<W, Position> won_;
  };
};

/// The same part of the gradient for all pixels. kExact: the number of pixels is the same power of
/// two in all windows, so that its reciprocal is exact.
template <class T, bool kExact>
struct AverageGradient {
  static constexpr int kMostInBlocks = kExact ? 2 : 0;
  const T* dy;
  Average average;

  template <int W>
  class Window {
   public:
    KOKKOS_INLINE_FUNCTION Window(const AverageGradient& from, const Windows& s, std::int32_t h,
                                  std::int32_t w, std::int64_t at)
        : dy_(from.dy + at),
          number_(kExact ? from.average.its_reciprocal : from.average.pixels(s, h, w)) {}
    [[nodiscard]] KOKKOS_INLINE_FUNCTION float at(int j, std::int32_t) const {
      return kExact ? to_float(dy_[j]) * number_ : to_float(dy_[j]) / number_;
    }

   private:
    LanesIn<W, T> dy_;
    float number_;
  };
};

/// dx pixel by pixel, each from all windows that contain it. Bytes: 2 for each element of dx, 2 or
/// 3 for each of dy.
template <class T, class Gradient>
struct PixelGradients {
  PixelItems items;
  Windows s;
  T* dx;
  Gradient gradient;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    items.for_strips(i, [&]<int W>(const Place& p) {
      float sum[W] = {};
      const Range rows = s.h.windows_of(p.h);
      const Range columns = s.w.windows_of(p.w);
      for (std::int32_t h = rows.first; h < rows.last; ++h) {
        for (std::int32_t w = columns.first; w < columns.last; ++w) {
          const std::int32_t code = (p.h - s.h.start(h)) * s.w.kernel + p.w - s.w.start(w);
          const typename Gradient::template Window<W> window(gradient, s, h, w,
                                                             s.out_image(p) + s.out_pixel(h, w));
          MILLRACE_SIMD
          for (int j = 0; j < p.lanes; ++j) sum[j] += window.at(j, code);
        }
      }
      LanesOut<W, T> out(dx + s.in_image(p) + s.in_pixel(p.h, p.w));
      MILLRACE_SIMD
      for (int j = 0; j < p.lanes; ++j) out.set(j, store_as<T>(sum[j]));
    });
  }
};

/// dx in blocks of S x S pixels, each of which begins where a window of K x K does. A block sees
/// few windows, which are read before the first one is used:
///
///   window a - 1  [ 0 ][ 1 ][ 2 ]                K = 3, S = 2
///   window a                [ 0 ][ 1 ][ 2 ]
///   block a                 [ 0 ][ 1 ]           place 2 of window a - 1 and 0, 1 of window a
///
/// Bytes: as above.
template <class T, class Gradient, int K, int S>
struct BlockGradients {
  static constexpr int kSeen = (K + S - 1) / S;  ///< windows along an axis
  PixelItems items;
  Windows s;
  T* dx;
  Gradient gradient;

  [[nodiscard]] static std::int64_t blocks(const WindowAxis& axis) {
    return (axis.in - 1 + axis.pad) / S - axis.pad / S + 1;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    items.for_strips(i, [&]<int W>(const Place& p) {
      const std::int32_t h = p.h + s.h.pad / S;
      const std::int32_t w = p.w + s.w.pad / S;
      float sum[S * S][W] = {};
      add<W>(p, h, w, sum, std::make_index_sequence<kSeen * kSeen>{});
      MILLRACE_UNROLL
      for (int d = 0; d < S * S; ++d) {
        const std::int32_t row = s.h.start(h) + d / S;
        const std::int32_t column = s.w.start(w) + d % S;
        if (row < 0 || row >= s.h.in || column < 0 || column >= s.w.in) continue;
        LanesOut<W, T> out(dx + s.in_image(p) + s.in_pixel(row, column));
        MILLRACE_UNROLL
        for (int j = 0; j < W; ++j) out.set(j, store_as<T>(sum[d][j]));
      }
    });
  }

  /// Adds what the windows give block (h, w), in ascending order.
  template <int W, std::size_t... kWindows>
  KOKKOS_INLINE_FUNCTION void add(const Place& p, std::int32_t h, std::int32_t w,
                                  float (&sum)[S * S][W], std::index_sequence<kWindows...>) const {
    using Window = typename Gradient::template Window<W>;
    const auto row = [&](int k) { return h - (kSeen - 1) + k / kSeen; };
    const auto column = [&](int k) { return w - (kSeen - 1) + k % kSeen; };
    const auto read = [&](std::int32_t at_h, std::int32_t at_w) {
      const std::int32_t in_h = clamped(at_h, {0, s.h.out});
      const std::int32_t in_w = clamped(at_w, {0, s.w.out});
      return Window(gradient, s, in_h, in_w, s.out_image(p) + s.out_pixel(in_h, in_w));
    };
    const Window windows[] = {read(row(kWindows), column(kWindows))...};
    MILLRACE_UNROLL
    for (int k = 0; k < kSeen * kSeen; ++k) {
      if (row(k) < 0 || row(k) >= s.h.out || column(k) < 0 || column(k) >= s.w.out) continue;
      MILLRACE_UNROLL
      for (int d = 0; d < S * S; ++d) {
        const int r = d / S + S * (kSeen - 1 - k / kSeen);
        const int q = d % S + S * (kSeen - 1 - k % kSeen);
        if (r >= K || q >= K) continue;
        MILLRACE_UNROLL
        for (int j = 0; j < W; ++j) sum[d][j] += windows[k].at(j, r * K + q);
      }
    }
  }
};

/// Launches one of the two. Cores keep the sums of a pixel's strip in registers.
template <std::size_t kLabelSize, class T, class Gradient>
void window_gradients(const char (&label)[kLabelSize], const ExecutionSpace& space,
                      const WindowShape& s, bool whole, T* dx, const Gradient& gradient) {
  const Windows windows(s);
  const auto in_blocks = [&]<int K, int S>() {
    using Kernel = BlockGradients<T, Gradient, K, S>;
    const Shape blocks{Kernel::blocks(windows.h), Kernel::blocks(windows.w), s.in.c};
    const PixelItems items(s.batch, blocks, whole);
    parallel(label, space, items.count(), Kernel{items, windows, dx, gradient});
  };
  const auto are = [&](std::int64_t kernel, std::int64_t stride) {
    return s.kernel_h == kernel && s.kernel_w == kernel && s.stride_h == stride &&
           s.stride_w == stride;
  };
  if constexpr (!device::kOnCores && Gradient::kMostInBlocks >= 2)
    if (are(2, 2)) return in_blocks.template operator()<2, 2>();
  if constexpr (!device::kOnCores && Gradient::kMostInBlocks >= 3)
    if (are(3, 2)) return in_blocks.template operator()<3, 2>();
  const PixelItems items(s.batch, s.in, whole);
  parallel(label, space, items.count(), PixelGradients<T, Gradient>{items, windows, dx, gradient});
}

}  // namespace

template <class T, class Position>
void max_pool_forward(const ExecutionSpace& space, const WindowShape& s, T* y, Position* winner,
                      const T* x, const InlinedNorm& norm) {
  MILLRACE_ASSERT(winner == nullptr || can_name_positions<Position>(s));
  const bool inlined = norm.statistics != nullptr;
  MILLRACE_ASSERT(!inlined || (!device::kOnCores && norm.fn == Activation::Relu));
  const bool whole = whole_strips(s.out.c, y, winner, x) && norm.is_aligned();
  const PixelItems items(s.batch, s.out, whole);
  const auto launch = [&]<int kColumns, class Input>() {
    parallel("max pool", space, items.count(),
             MaxForward<T, Position, kColumns, Input>{items, Windows(s), y, winner, x, norm});
  };
  const auto run = [&]<int kColumns>() {
    if constexpr (!device::kOnCores)
      if (inlined) return launch.template operator()<kColumns, Normalized<Activation::Relu>>();
    launch.template operator()<kColumns, AsStored>();
  };
  if constexpr (sizeof(Position) == 1)
    dispatch_window(s, run);
  else
    run.template operator()<0>();  // only large windows need such positions
}

template <class T, class Position>
void max_pool_backward(const ExecutionSpace& space, const WindowShape& s, T* dx, const T* dy,
                       const Position* winner) {
  MILLRACE_ASSERT(can_name_positions<Position>(s));
  window_gradients("max pool dx", space, s, whole_strips(s.in.c, dx, dy, winner), dx,
                   MaxGradient<T, Position>{dy, winner});
}

template <class T>
void average_pool_forward(const ExecutionSpace& space, const WindowShape& s, T* y, const T* x,
                          bool count_padding) {
  const Windows windows(s);
  const Average average(s, windows, count_padding);
  const PixelItems items(s.batch, s.out, whole_strips(s.out.c, y, x));
  dispatch_window(s, [&]<int kColumns>() {
    parallel("average pool", space, items.count(),
             AverageForward<T, kColumns>{items, windows, average, y, x});
  });
}

template <class T>
void average_pool_backward(const ExecutionSpace& space, const WindowShape& s, T* dx, const T* dy,
                           bool count_padding) {
  const Average average(s, Windows(s), count_padding);
  const bool whole = whole_strips(s.in.c, dx, dy);
  if (average.equal && std::has_single_bit(static_cast<std::uint64_t>(s.kernel_h * s.kernel_w)))
    window_gradients("average pool dx", space, s, whole, dx, AverageGradient<T, true>{dy, average});
  else
    window_gradients("average pool dx", space, s, whole, dx,
                     AverageGradient<T, false>{dy, average});
}

MILLRACE_INSTANTIATE_WITH(max_pool_forward, std::uint8_t)
MILLRACE_INSTANTIATE_WITH(max_pool_forward, std::int32_t)
MILLRACE_INSTANTIATE_WITH(max_pool_backward, std::uint8_t)
MILLRACE_INSTANTIATE_WITH(max_pool_backward, std::int32_t)
MILLRACE_INSTANTIATE(average_pool_forward)
MILLRACE_INSTANTIATE(average_pool_backward)

}  // namespace millrace::ops
