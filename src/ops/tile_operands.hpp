// SPDX-License-Identifier: Apache-2.0
//
// The operands and results of a convolution as products of tiles (tile_product.hpp): images under
// windows, kernels, gradients, and where sums go.
#pragma once

#include <cstdint>
#include <numeric>

#include "device/parallel.hpp"
#include "device/tensor.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// Where a window lies in an image: its first row and column, and the offset of its image.
struct Position {
  std::int64_t image;
  std::int32_t h;
  std::int32_t w;
};
/// A tap of a window and a channel of the image.
struct Tap {
  std::int64_t channel;
  std::int64_t left;  ///< channels of the group from it on
  std::int32_t h;
  std::int32_t w;
};
/// A run without an end.
constexpr std::int64_t kEndless = std::int64_t{1} << 30;

/// The elements of an image under windows, zero outside.
template <class T>
struct Windows {
  const T* data;
  Shape image;
  Shape pixels;  ///< of the windows' grid
  std::int64_t per_group;
  std::int64_t kernel_w;
  /// Row of a window's first element: grid row x step_h + first_h; the tap r is r x tap_h below.
  std::int32_t step_h = 1, step_w = 1;
  std::int32_t first_h = 0, first_w = 0;
  std::int32_t tap_h = 1, tap_w = 1;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION Position position(std::int64_t pixel) const {
    const Quotient column = divide(pixel, pixels.w);
    const Quotient row = divide(column.quotient, pixels.h);
    return {row.quotient * image.h * image.w * image.c,
            static_cast<std::int32_t>(row.remainder) * step_h + first_h,
            static_cast<std::int32_t>(column.remainder) * step_w + first_w};
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tap tap(std::int64_t group, std::int64_t k) const {
    const Quotient channel = divide(k, per_group);
    const Quotient row = divide(channel.quotient, kernel_w);
    return {group * per_group + channel.remainder, per_group - channel.remainder,
            static_cast<std::int32_t>(row.quotient) * tap_h,
            static_cast<std::int32_t>(row.remainder) * tap_w};
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* at(const Position& p, const Tap& t) const {
    const std::int32_t h = p.h + t.h;
    const std::int32_t w = p.w + t.w;
    if (h < 0 || w < 0 || h >= image.h || w >= image.w) return nullptr;
    return data + p.image + (h * image.w + w) * image.c + t.channel;
  }
  /// Elements from at(p, t) on that lie next to each other: channels of the group, and those of the
  /// next taps of the row where all of them lie within the image.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t run(const Position& p, const Tap& t) const {
    const std::int32_t w = p.w + t.w;
    const bool whole_pixels = per_group == image.c && tap_w == 1;
    if (!whole_pixels || w < 0 || p.w + kernel_w > image.w) return t.left;
    return t.left + (kernel_w - 1 - t.w) * per_group;
  }
};

/// Windows as the left operand: a row is a window.
template <class T>
struct WindowRows {
  using Outer = Position;
  using Inner = Tap;
  static constexpr bool kInnerIsDense = true;
  Windows<T> windows;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Position outer(std::int64_t, std::int64_t m) const {
    return windows.position(m);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tap inner(std::int64_t group, std::int64_t k) const {
    return windows.tap(group, k);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* pointer(const Position& p, const Tap& t) const {
    return windows.at(p, t);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t run(const Position& p, const Tap& t) const {
    return windows.run(p, t);
  }
};

/// Windows as the right operand: a column is a tap.
template <class T>
struct TapColumns {
  using Outer = Tap;
  using Inner = Position;
  static constexpr bool kInnerIsDense = false;
  Windows<T> windows;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tap outer(std::int64_t group, std::int64_t n) const {
    return windows.tap(group, n);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Position inner(std::int64_t, std::int64_t k) const {
    return windows.position(k);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* pointer(const Tap& t, const Position& p) const {
    return windows.at(p, t);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t run(const Tap& t, const Position& p) const {
    return windows.run(p, t);
  }
};

/// A tensor whose element is at the sum of two offsets.
template <class T, bool kInner>
struct Stored {
  using Outer = std::int64_t;
  using Inner = std::int64_t;
  static constexpr bool kInnerIsDense = kInner;
  const T* data;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* pointer(std::int64_t outer,
                                                        std::int64_t inner) const {
    return data + outer + inner;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static std::int64_t run(std::int64_t, std::int64_t) {
    return kEndless;
  }
};

/// Columns are outputs: kernel[group x outputs + n][k].
template <class T>
struct KernelByOutput : Stored<T, true> {
  std::int64_t outputs, depth;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t outer(std::int64_t g, std::int64_t n) const {
    return (g * outputs + n) * depth;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t inner(std::int64_t, std::int64_t k) const {
    return k;
  }
};

/// Along one axis: every `stride`-th input pixel from `first` on, and the taps that they were
/// multiplied by, which are every `step`-th from `tap` on.
struct StridedAxis {
  std::int64_t first = 0, stride = 1;
  std::int64_t pixels = 0;
  std::int64_t tap = 0, step = 1;
  std::int64_t taps = 0;
  std::int32_t output = 0;       ///< that the first tap of the first pixel belongs to
  std::int32_t next_output = 0;  ///< from tap to tap
};

/// Of the pixels of an axis that lie `first` behind a multiple of the stride. Tap r of output o
/// reads the pixel o x stride - padding + r x dilation.
inline StridedAxis strided_axis(std::int64_t first, std::int64_t pixels, std::int64_t window,
                                std::int64_t stride, std::int64_t padding, std::int64_t dilation) {
  StridedAxis axis{.first = first, .stride = stride};
  axis.pixels = first < pixels ? (pixels - 1 - first) / stride + 1 : 0;
  axis.step = stride / std::gcd(stride, dilation);
  while (axis.tap < axis.step && (first + padding - axis.tap * dilation) % stride != 0) ++axis.tap;
  if (axis.tap == axis.step || axis.tap >= window) return axis;  // no tap reads them
  axis.taps = (window - 1 - axis.tap) / axis.step + 1;
  axis.output = static_cast<std::int32_t>((first + padding - axis.tap * dilation) / stride);
  axis.next_output = static_cast<std::int32_t>(-axis.step * dilation / stride);
  return axis;
}

/// Columns are inputs: kernel[group x outputs + o][tap][n], with k = tap x outputs + o for the taps
/// of the axes.
template <class T>
struct KernelByInput : Stored<T, false> {
  std::int64_t outputs, kernel_w, taps, inputs;
  StridedAxis h, w;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t outer(std::int64_t, std::int64_t n) const {
    return n;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t inner(std::int64_t g, std::int64_t k) const {
    const Quotient output = divide(k, outputs);
    const Quotient row = divide(output.quotient, w.taps);
    const std::int64_t tap =
        (h.tap + row.quotient * h.step) * kernel_w + w.tap + row.remainder * w.step;
    return ((g * outputs + output.remainder) * taps + tap) * inputs;
  }
};

/// Rows are channels of a gradient, k are its pixels.
template <class T>
struct GradientRows : Stored<T, false> {
  std::int64_t outputs, channels;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t outer(std::int64_t g, std::int64_t m) const {
    return g * outputs + m;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t inner(std::int64_t, std::int64_t k) const {
    return k * channels;
  }
};

/// Stores the activation of pixel m and channel n of a group.
template <class T>
struct StoreActivation {
  struct Row {
    T* to;
    const float* bias;
    KOKKOS_INLINE_FUNCTION void operator()(std::int64_t n, float sum) const {
      to[n] = store_as<T>(bias != nullptr ? sum + bias[n] : sum);
    }
  };
  T* data;
  std::int64_t channels, per_group;
  const float* bias;  ///< null: none
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Row row(std::int64_t g, std::int64_t, std::int64_t m) const {
    const std::int64_t first = g * per_group;
    return {data + m * channels + first, bias != nullptr ? bias + first : nullptr};
  }
};

/// The same, where pixel m is one of those of two axes.
template <class T>
struct StoreStrided {
  StoreActivation<T> store;
  Shape image;
  StridedAxis h, w;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION auto row(std::int64_t g, std::int64_t part,
                                                std::int64_t m) const {
    const Quotient column = divide(m, w.pixels);
    const Quotient row = divide(column.quotient, h.pixels);
    const std::int64_t in_image =
        (h.first + row.remainder * h.stride) * image.w + w.first + column.remainder * w.stride;
    return store.row(g, part, row.quotient * image.h * image.w + in_image);
  }
};

/// Stores a part of the sums of output m and tap x input n.
struct StoreParts {
  struct Row {
    float* to;
    KOKKOS_INLINE_FUNCTION void operator()(std::int64_t n, float sum) const { to[n] = sum; }
  };
  float* parts;  // [part][output][tap][input]
  std::int64_t elements, outputs, depth;
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Row row(std::int64_t g, std::int64_t part,
                                               std::int64_t m) const {
    return {parts + part * elements + (g * outputs + m) * depth};
  }
};

}  // namespace millrace::ops
