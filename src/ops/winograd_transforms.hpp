// SPDX-License-Identifier: Apache-2.0
//
// Winograd's F(4, 3) along one axis: four outputs of a window of three taps from six inputs with
// six products instead of twelve (Lavin and Gray 2016). The polynomials behind it are evaluated at
// 0, a, -a, b, -b and infinity. a = 2/3 and b = 3/2 make the error 1.8 times that of a sum of
// products; the usual 1 and 2 make it 4.6 times as large (64 channels of normal values; Barabasz
// and others 2020 on why).
//
//   outputs   y = A^T ((G g) * (B^T d))     products of six values
//   kernel    dg = G^T ((A dy) * (B^T d))   the adjoint of y in g
//
// And how these are applied along both axes of images, a strip of channels at a time.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "ops/lanes.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops::winograd {

inline constexpr int kOutputs = 4;
inline constexpr int kTaps = 3;
inline constexpr int kPoints = 6;  ///< kOutputs + kTaps - 1 inputs

inline constexpr float kA = 2.0f / 3.0f;
inline constexpr float kB = 3.0f / 2.0f;  // a b = 1
inline constexpr float kA2 = kA * kA;
inline constexpr float kB2 = kB * kB;
inline constexpr float kSum = 97.0f / 36.0f;       ///< a^2 + b^2
inline constexpr float kOverNa = -81.0f / 130.0f;  ///< 1 / (2 a^2 (a^2 - b^2))
inline constexpr float kOverNb = 8.0f / 65.0f;     ///< 1 / (2 b^2 (b^2 - a^2))

/// B^T d
inline std::array<float, 6> of_inputs(float d0, float d1, float d2, float d3, float d4, float d5) {
  const float even_a = d4 - kB2 * d2;
  const float odd_a = kA * (d3 - kB2 * d1);
  const float even_b = d4 - kA2 * d2;
  const float odd_b = kB * (d3 - kA2 * d1);
  return {d0 - kSum * d2 + d4, even_a + odd_a, even_a - odd_a,
          even_b + odd_b,      even_b - odd_b, d1 - kSum * d3 + d5};
}

/// A^T m
inline std::array<float, 4> to_outputs(float m0, float m1, float m2, float m3, float m4, float m5) {
  const float even_a = m1 + m2;
  const float odd_a = m1 - m2;
  const float even_b = m3 + m4;
  const float odd_b = m3 - m4;
  return {m0 + even_a + even_b, kA * odd_a + kB * odd_b, kA2 * even_a + kB2 * even_b,
          kA2 * kA * odd_a + kB2 * kB * odd_b + m5};
}

/// A y
inline std::array<float, 6> of_outputs(float y0, float y1, float y2, float y3) {
  const float even_a = y0 + kA2 * y2;
  const float odd_a = kA * (y1 + kA2 * y3);
  const float even_b = y0 + kB2 * y2;
  const float odd_b = kB * (y1 + kB2 * y3);
  return {y0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, y3};
}

/// G g
inline std::array<float, 6> of_taps(float g0, float g1, float g2) {
  const float even_a = kOverNa * (g0 + kA2 * g2);
  const float odd_a = kOverNa * kA * g1;
  const float even_b = kOverNb * (g0 + kB2 * g2);
  const float odd_b = kOverNb * kB * g1;
  return {g0, even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b, g2};
}

/// G^T u
inline std::array<float, 3> to_taps(float u0, float u1, float u2, float u3, float u4, float u5) {
  const float even_a = kOverNa * (u1 + u2);
  const float odd_a = kOverNa * (u1 - u2);
  const float even_b = kOverNb * (u3 + u4);
  const float odd_b = kOverNb * (u3 - u4);
  return {u0 + even_a + even_b, kA * odd_a + kB * odd_b, kA2 * even_a + kB2 * even_b + u5};
}

// ---- images

inline constexpr int kStrip = 16;  ///< channels of a transform
inline constexpr int kPointsOfTile = kPoints * kPoints;
inline constexpr int kTapsOfKernel = kTaps * kTaps;

/// Images in tiles of outputs.
struct Tiles {
  std::int64_t batch;
  Shape in, out;
  std::int64_t pad_top, pad_left;

  [[nodiscard]] std::int64_t down() const { return (out.h + kOutputs - 1) / kOutputs; }
  [[nodiscard]] std::int64_t across() const { return (out.w + kOutputs - 1) / kOutputs; }
  [[nodiscard]] std::int64_t count() const { return batch * down() * across(); }

  struct Place {
    std::int64_t sample, row, column;  ///< of the first output
  };
  [[nodiscard]] Place place(std::int64_t tile) const {
    return {tile / across() / down(), tile / across() % down() * kOutputs,
            tile % across() * kOutputs};
  }
};

/// Values of the tiles of a chunk: [point][tile][channel].
struct Planes {
  float* data;
  std::int64_t tiles;
  std::int64_t channels;

  /// Channels of a row. Rows of a power of two would share few sets of a cache.
  [[nodiscard]] std::int64_t row() const { return channels + kStrip; }
  [[nodiscard]] std::int64_t plane() const { return tiles * row(); }
  [[nodiscard]] std::int64_t elements() const { return kPointsOfTile * plane(); }
};

/// One lane of along_axis(). What is declared within a simd loop itself is an array to GCC.
template <auto kAxis, class From, int... i, int... j>
KOKKOS_FORCEINLINE_FUNCTION void along_axis(float* to, std::int64_t to_step, const From& from,
                                            int n, std::integer_sequence<int, i...>,
                                            std::integer_sequence<int, j...>) {
  const auto result = kAxis(to_float(from(j)[n])...);
  ((to[i * to_step + n] = std::get<i>(result)), ...);
}

/// Transforms along one axis: to[i] from from(j), pointers to a strip of channels each.
template <auto kAxis, int kFrom, int kTo, class From>
KOKKOS_FORCEINLINE_FUNCTION void along_axis(float* to, std::int64_t to_step, const From& from) {
  MILLRACE_SIMD
  for (int n = 0; n < kStrip; ++n)
    along_axis<kAxis>(to, to_step, from, n, std::make_integer_sequence<int, kTo>(),
                      std::make_integer_sequence<int, kFrom>());
}

/// Strips that lie `step` apart.
template <class T>
struct Strips {
  const T* first;
  std::int64_t step;
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const T* operator()(int i) const {
    return first + i * step;
  }
};

/// Columns of strips: strip (i, j) is at first + i * row + j * column.
template <class T>
struct Columns {
  const T* first;
  std::int64_t row, column;
  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION Strips<T> operator()(int j) const {
    return {first + j * column, row};
  }
};

/// Transforms kFrom x kFrom strips along both axes. What they become goes to
/// to + i * to_row + j * to_column.
template <auto kAxis, int kFrom, int kTo, class From>
KOKKOS_FORCEINLINE_FUNCTION void along_both(float* to, std::int64_t to_row, std::int64_t to_column,
                                            const From& columns) {
  float half[kTo][kFrom][kStrip];
  for (int j = 0; j < kFrom; ++j)
    along_axis<kAxis, kFrom, kTo>(half[0][j], kFrom * kStrip, columns(j));
  for (int i = 0; i < kTo; ++i)
    along_axis<kAxis, kFrom, kTo>(to + i * to_row, to_column, Strips<float>{half[i][0], kStrip});
}

template <class T>
inline constexpr T kNoPixel[kStrip] = {};

/// Strips of pixels from (row, column) on; zeros outside of the image.
template <class T, int kSize>
struct BorderColumns {
  struct List {
    const T* at[kSize];
    [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION const T* operator()(int i) const { return at[i]; }
  };
  const T* image;
  Shape shape;
  std::int64_t row, column, channel;

  [[nodiscard]] KOKKOS_FORCEINLINE_FUNCTION List operator()(int j) const {
    const bool in_row = column + j >= 0 && column + j < shape.w;
    List list;
    for (int i = 0; i < kSize; ++i)
      list.at[i] = in_row && row + i >= 0 && row + i < shape.h
                       ? image + ((row + i) * shape.w + column + j) * shape.c + channel
                       : kNoPixel<T>;
    return list;
  }
};

/// Transforms kSize x kSize pixels from (row, column) on, all of their channels, into row `tile` of
/// `planes`.
template <auto kAxis, int kSize, class T>
KOKKOS_FORCEINLINE_FUNCTION void transform_pixels(const Planes& planes, std::int64_t tile,
                                                  const T* image, const Shape& shape,
                                                  std::int64_t row, std::int64_t column) {
  const bool inside =
      row >= 0 && column >= 0 && row + kSize <= shape.h && column + kSize <= shape.w;
  const std::int64_t plane = planes.plane();
  for (std::int64_t c = 0; c < shape.c; c += kStrip) {
    float* const to = planes.data + tile * planes.row() + c;
    if (inside) {
      const T* const first = image + (row * shape.w + column) * shape.c + c;
      along_both<kAxis, kSize, kPoints>(to, kPoints * plane, plane,
                                        Columns<T>{first, shape.w * shape.c, shape.c});
    } else {
      along_both<kAxis, kSize, kPoints>(to, kPoints * plane, plane,
                                        BorderColumns<T, kSize>{image, shape, row, column, c});
    }
  }
}

/// The inputs of a tile.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void transform_inputs(const Planes& planes, std::int64_t row,
                                                  const Tiles& tiles, const T* x,
                                                  std::int64_t tile) {
  const Tiles::Place at = tiles.place(tile);
  transform_pixels<of_inputs, kPoints>(planes, row, x + at.sample * tiles.in.elements(), tiles.in,
                                       at.row - tiles.pad_top, at.column - tiles.pad_left);
}

}  // namespace millrace::ops::winograd
