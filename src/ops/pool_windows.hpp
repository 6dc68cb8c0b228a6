// SPDX-License-Identifier: Apache-2.0
//
// How kernels on images divide their work, by pixels and by strips of channels; and the windows of
// a pool: which input pixels an output pixel sees, and the reverse.
#pragma once

#include <cstdint>
#include <utility>

#include "core/error.hpp"
#include "ops/fast_divide.hpp"
#include "ops/lanes.hpp"
#include "ops/pool.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

// A work item is one row of pixels with all channels on CPUs, one strip or one element on GPUs.
inline constexpr bool kRows = device::kOnCores;
// Number of neighboring channels that are computed together in registers. A GPU loads a strip of a
// 16-bit type at once (lanes.hpp), and neighboring threads have neighboring strips.
inline constexpr int kStrip = kRows ? 64 : 8;

/// Channels [first, first + lanes) of one pixel of a batch of images.
struct Place {
  std::int64_t n;
  std::int32_t h;
  std::int32_t w;
  std::int64_t first;
  int lanes;
};

/// Whether work items of GPUs may be strips: all arrays begin where strips can be accessed at once.
/// Each number of channels must consist of whole strips as well.
template <class... Pointers>
[[nodiscard]] bool whole_strips(std::int64_t channels, const Pointers*... pointers) {
  return channels % kStrip == 0 && are_aligned(pointers...);
}

/// The pixels of a batch of images, cut into work items.
class PixelItems {
 public:
  /// `whole`: items of GPUs are strips, otherwise single elements.
  PixelItems(std::int64_t batch, const Shape& shape, bool whole)
      : batch_(batch),
        channels_(static_cast<int>(shape.c)),
        whole_(whole),
        strips_(kRows ? 1 : shape.c / (whole ? kStrip : 1)),
        columns_(shape.w),
        rows_(shape.h) {}

  [[nodiscard]] std::int64_t count() const {
    return batch_ * rows_.by() * (kRows ? 1 : columns_.by() * strips_.by());
  }

  /// Calls f.template operator()<W>(place) for every pixel of item i: on CPUs with all channels, on
  /// GPUs with W channels.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_pixels(std::int64_t i, const F& f) const {
    if constexpr (kRows) {
      const auto sample = rows_(i);
      const auto last = static_cast<std::int32_t>(columns_.by());
      Place p{sample.quotient, static_cast<std::int32_t>(sample.remainder), 0, 0, channels_};
      for (; p.w < last; ++p.w) f.template operator()<kStrip>(p);
    } else if (whole_) {
      f.template operator()<kStrip>(place_of<kStrip>(i));
    } else {
      f.template operator()<1>(place_of<1>(i));
    }
  }

  /// Like for_pixels, on CPUs in strips of at most W channels.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_strips(std::int64_t i, const F& f) const {
    for_pixels(i, [&]<int W>(const Place& pixel) {
      if constexpr (kRows) {
        Place p = pixel;
        for (; p.first < channels_; p.first += W) {
          p.lanes = channels_ - p.first < W ? static_cast<int>(channels_ - p.first) : W;
          f.template operator()<W>(p);
        }
      } else {
        f.template operator()<W>(pixel);
      }
    });
  }

 private:
  template <int W>
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Place place_of(std::int64_t i) const {
    return with_fast_type(i, [&](auto item) {
      const auto pixel = strips_(item);
      const auto row = columns_(pixel.quotient);
      const auto sample = rows_(row.quotient);
      return Place{static_cast<std::int64_t>(sample.quotient),
                   static_cast<std::int32_t>(sample.remainder),
                   static_cast<std::int32_t>(row.remainder),
                   static_cast<std::int64_t>(pixel.remainder) * W, W};
    });
  }

  std::int64_t batch_;
  int channels_;
  bool whole_;
  FastDivide strips_;
  FastDivide columns_;
  FastDivide rows_;
};

KOKKOS_INLINE_FUNCTION std::int64_t offset(const Shape& s, std::int64_t n, std::int64_t h,
                                           std::int64_t w) {
  return ((n * s.h + h) * s.w + w) * s.c;
}

struct Range {
  std::int32_t first;
  std::int32_t last;
};

/// The nearest number in the range, which is not empty.
KOKKOS_INLINE_FUNCTION std::int32_t clamped(std::int32_t at, const Range& range) {
  return at < range.first ? range.first : at < range.last ? at : range.last - 1;
}

/// The windows of a pool along one axis.
struct WindowAxis {
  std::int32_t in;
  std::int32_t out;
  std::int32_t kernel;
  std::int32_t stride;
  std::int32_t pad;
  FastDivide by_stride;

  WindowAxis(std::int64_t inputs, std::int64_t outputs, std::int64_t size, std::int64_t step,
             std::int64_t before)
      : in(static_cast<std::int32_t>(inputs)),
        out(static_cast<std::int32_t>(outputs)),
        kernel(static_cast<std::int32_t>(size)),
        stride(static_cast<std::int32_t>(step)),
        pad(static_cast<std::int32_t>(before)),
        by_stride(step) {
    MILLRACE_ASSERT(before < size && (outputs - 1) * step - before < inputs);  // no empty window
  }

  /// The position of the first place in the window of output `at`; negative in the padding.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int32_t start(std::int32_t at) const {
    return at * stride - pad;
  }
  /// Places [first, last) in the window of output `at` that are inside the image.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Range inside(std::int32_t at) const {
    const std::int32_t from = start(at);
    return {from < 0 ? -from : 0, in - from < kernel ? in - from : kernel};
  }
  /// Outputs [first, last) whose window contains input `at`.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Range windows_of(std::int32_t at) const {
    const std::int32_t before = at + pad - kernel + stride;  // rounds up
    const std::int32_t last = by_stride.quotient(at + pad) + 1;
    return {before < stride ? 0 : by_stride.quotient(before), last < out ? last : out};
  }
  /// Whether no window reaches into the padding.
  [[nodiscard]] bool all_inside() const { return pad == 0 && start(out - 1) + kernel <= in; }
};

/// The windows of a pool.
struct Windows {
  WindowAxis h;
  WindowAxis w;
  std::int32_t channels;
  FastDivide by_columns;  ///< of a window

  explicit Windows(const WindowShape& s)
      : h(s.in.h, s.out.h, s.kernel_h, s.stride_h, s.pad_top),
        w(s.in.w, s.out.w, s.kernel_w, s.stride_w, s.pad_left),
        channels(static_cast<std::int32_t>(s.in.c)),
        by_columns(s.kernel_w) {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;  // of what is counted in 32 bits
    MILLRACE_ASSERT(s.in.c == s.out.c && s.in.elements() < kMost && s.out.elements() < kMost);
  }

  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int32_t places() const { return h.kernel * w.kernel; }
  /// Where the strip begins in pixel (0, 0) of its image, and from there on in pixel (row, column),
  /// on both sides.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t in_image(const Place& p) const {
    return p.n * (h.in * w.in * channels) + p.first;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int32_t in_pixel(std::int32_t row,
                                                             std::int32_t column) const {
    return (row * w.in + column) * channels;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t out_image(const Place& p) const {
    return p.n * (h.out * w.out * channels) + p.first;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int32_t out_pixel(std::int32_t row,
                                                              std::int32_t column) const {
    return (row * w.out + column) * channels;
  }
};

/// N places of a window, in row-major order. A place outside of the image or behind the window's
/// end has the code and the offset of the nearest pixel inside.
template <int N>
struct WindowPlaces {
  std::int32_t code[N];    ///< index in the window
  std::int32_t offset[N];  ///< in the image
  bool inside[N];

  /// From place `first` on, in the window of output pixel p. Windows of N places have kColumns
  /// columns; 0 stands for windows of any size.
  template <int kColumns>
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static WindowPlaces from(const Windows& s, const Place& p,
                                                                std::int32_t first) {
    const Range rows = s.h.inside(p.h);
    const Range columns = s.w.inside(p.w);
    const std::int32_t width = kColumns > 0 ? kColumns : s.w.kernel;
    const std::int32_t end = kColumns > 0 ? N : s.places();
    WindowPlaces places;
    for (int k = 0; k < N; ++k) {
      const std::int32_t place = first + k < end ? first + k : end - 1;
      const std::int32_t r = kColumns > 0 ? place / width : s.by_columns.quotient(place);
      const std::int32_t q = place - r * width;
      const std::int32_t row = clamped(r, rows);
      const std::int32_t column = clamped(q, columns);
      places.code[k] = row * width + column;
      places.offset[k] = s.in_pixel(s.h.start(p.h) + row, s.w.start(p.w) + column);
      places.inside[k] = row == r && column == q && first + k < end;
    }
    return places;
  }
};

/// The strips at N offsets, all of which are read before the first one is used.
template <int W, class T, int N>
class StripsAt {
 public:
  KOKKOS_INLINE_FUNCTION StripsAt(const T* from, const std::int32_t (&offsets)[N])
      : StripsAt(from, offsets, std::make_index_sequence<N>{}) {}
  [[nodiscard]] KOKKOS_INLINE_FUNCTION T at(int k, int j) const { return strips_[k][j]; }

 private:
  template <std::size_t... k>
  KOKKOS_INLINE_FUNCTION StripsAt(const T* from, const std::int32_t (&offsets)[N],
                                  std::index_sequence<k...>)
      : strips_{LanesIn<W, T>(from + offsets[k])...} {}

  LanesIn<W, T> strips_[N];
};

}  // namespace millrace::ops
