// SPDX-License-Identifier: Apache-2.0
//
// src/ops/cutlass: 1x1 convolutions as products of our own, made of CUTLASS' parts, which add what
// the neighboring norm needs while their results are in registers. A run of calls that is computed
// so must have the bits of separate kernels, because a cut may separate them (law 1). So there is
// one order of sums, which depends on the shape only, and one function that adds in it. This is
// that function. The product calls it with a tile that it has just computed, the kernel of a norm
// alone with a tile in memory.
//
//   tile    128 rows x 128 or 64 channels, a work item of a team of 128 threads (a warp group)
//   strip   8 or 4 neighboring channels of a tile: what a thread reads at once
//   part    16 rows of a tile: thread p * 16 + s adds up strip s of part p, row after row
//
//             strip 0   strip 1  ...  strip 15
//   part 0   [thread 0][       1]    [       15]
//   part 1   [      16][      17]    [       31]
//   ...
//
// The parts of a tile are joined in ascending order. Of every tile and channel two floats are left,
// as [tile][2][channels]: 8 bytes for 256 of the activation, which a kernel of their own joins.
//
// tile_shape    how an activation is cut
// tile_sums     sums over one tile
// tile_norms    the kernels of a norm alone, and the one behind a product
// products      the products
// product_ops   the passes of convolutions and the runs of calls that they compute
#pragma once

#include <cstdint>

#include "core/portable.hpp"
#include "ops/lanes.hpp"
#include "ops/mask.hpp"
#include "ops/norm.hpp"
#include "ops/norm_results.hpp"
#include "ops/norm_teams.hpp"

namespace millrace::ops::tiles {

inline constexpr int kParts = kRows / kPartRows;
inline constexpr int kStrips = 16;
inline constexpr int kThreads = kStrips * kParts;

/// Floats of shared memory that sums over a tile of so many columns need.
constexpr int shared_floats(int columns) { return 2 * kParts * columns; }

/// Rows of values: of an activation in memory, or of a tile in shared memory.
template <class T>
struct Rows {
  const T* first;
  std::int64_t step;  ///< from a row to the next
  [[nodiscard]] KOKKOS_INLINE_FUNCTION const T* at(int row, int lane) const {
    return first + row * step + lane;
  }
};

/// One tile of these.
struct Tile {
  TileShape shape;
  std::int64_t number;   ///< in the order of rows
  std::int64_t channel;  ///< the first one

  [[nodiscard]] KOKKOS_INLINE_FUNCTION int rows() const { return shape.rows_of(number); }
  /// Of a value of the tile in an activation.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t offset(int row, int lane) const {
    return (number * kRows + row) * shape.channels + channel + lane;
  }
  template <class T>
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Rows<T> rows_in(const T* activation) const {
    return {activation + offset(0, 0), shape.channels};
  }
};

/// Adds up two sums over the rows of a tile. `body.add<W>(row, lane, a, b)` adds W neighboring
/// channels of a row to theirs; `body.finish(lane, a, b)` makes of a channel's sums what is left of
/// them. All threads of the team call this; `shared` is theirs until they meet again.
template <int W, class Team, class Body>
KOKKOS_INLINE_FUNCTION void sum_tile(const Team& team, const Tile& tile, const Body& body,
                                     float* sums, float* shared) {
  constexpr int kColumns = kStrips * W;
  for (int k = team.rank(); k < kThreads; k += team.size()) {
    const int part = k / kStrips;
    const int lane = k % kStrips * W;
    float a[W] = {};
    float b[W] = {};
    if (part * kPartRows < tile.rows()) body.template add<W>(part * kPartRows, lane, a, b);
    store_lanes(shared + 2 * part * kColumns + lane, a);
    store_lanes(shared + (2 * part + 1) * kColumns + lane, b);
  }
  team.wait();
  float* const out = sums + 2 * tile.number * tile.shape.channels + tile.channel;
  for (int lane = team.rank(); lane < kColumns; lane += team.size()) {
    float a = 0.0f;
    float b = 0.0f;
    for (int part = 0; part < kParts; ++part) {
      a += shared[2 * part * kColumns + lane];
      b += shared[(2 * part + 1) * kColumns + lane];
    }
    body.finish(lane, a, b);
    out[lane] = a;
    out[tile.shape.channels + lane] = b;
  }
}

/// Rows whose loads are in flight together.
inline constexpr int kFlight = 4;

/// W neighboring values of kFlight rows.
template <int W, class T>
struct Flight {
  LanesIn<W, T> rows[kFlight];
  KOKKOS_INLINE_FUNCTION Flight(const Rows<T>& from, int row, int lane)
      : rows{LanesIn<W, T>(from.at(row, lane)), LanesIn<W, T>(from.at(row + 1, lane)),
             LanesIn<W, T>(from.at(row + 2, lane)), LanesIn<W, T>(from.at(row + 3, lane))} {}
  [[nodiscard]] KOKKOS_INLINE_FUNCTION float value(int row, int j) const {
    return to_float(rows[row][j]);
  }
};

/// Mean and sum of squared deviations of each channel of x, from differences to the tile's first
/// row, so that the squares are at most as many times those about the mean as the tile has rows.
/// Also writes x to memory if it is not there yet. Bytes a value: 2 read, or 2 written.
template <class T, bool kWrites>
struct TileMoments {
  Tile tile;
  Rows<T> x;
  T* out;  ///< the activation in memory, if kWrites

  template <int W>
  KOKKOS_INLINE_FUNCTION void add(int first, int lane, float (&sum)[W], float (&squares)[W]) const {
    const LanesIn<W, T> shift(x.at(0, lane));
    for (int r = first; r < first + kPartRows; r += kFlight) {
      const Flight<W, T> in(x, r, lane);
      MILLRACE_UNROLL
      for (int k = 0; k < kFlight; ++k) {
        if constexpr (kWrites) {
          LanesOut<W, T> copy(out + tile.offset(r + k, lane));
          MILLRACE_SIMD
          for (int j = 0; j < W; ++j) copy.set(j, in.rows[k][j]);
        }
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j) {
          const float d = in.value(k, j) - to_float(shift[j]);
          sum[j] += d;
          squares[j] = multiply_add(d, d, squares[j]);
        }
      }
    }
  }
  KOKKOS_INLINE_FUNCTION void finish(int lane, float& sum, float& squares) const {
    const float apart = sum / static_cast<float>(tile.rows());
    squares = not_negative(squares - apart * sum, squares);
    sum = to_float(*x.at(0, lane)) + apart;
  }
};

/// Sums of the gradient g of z = norm(x) + skip, and of g (x - mean). Rounds as norm_backward.cpp
/// does at each place where a cut may be. `dy` is the gradient that comes last, `in.dy2` the one
/// before. Also writes g, if it is not dy, or else dy, if that is not in memory yet. Bytes a value:
/// 2 read for each operand in memory and 1/8 for a mask, 2 written.
template <class T, Activation kFn, bool kSkip, bool kTwo, bool kMask, bool kWrites = kSkip || kTwo>
struct TileGradients {
  Tile tile;
  Rows<T> dy;
  NormBackwardReduce<T> in;
  T* out;  ///< if kWrites

  template <int W>
  KOKKOS_INLINE_FUNCTION void add(int first, int lane, float (&sum)[W], float (&product)[W]) const {
    // Of Relu: y > 0 exactly if z > 0.
    constexpr bool kReadsOutput = kSkip && kFn != Activation::None && !kMask;
    Strip strip{};
    strip.first_lane = tile.channel;
    Tiling t;
    t.channels = tile.shape.channels;
    const Affine<W> f(t, strip, lane, in.statistics, in.gamma, in.beta);
    float mean[W];
    for (int j = 0; j < W; ++j) mean[j] = in.statistics[tile.channel + lane + j];
    for (int r = first; r < first + kPartRows; r += kFlight) {
      const Flight<W, T> x(tile.rows_in(in.x), r, lane);
      const Flight<W, T> last(dy, r, lane);
      const Flight<W, T> other(kTwo ? tile.rows_in(in.dy2) : dy, r, lane);
      const Flight<W, T> y(kReadsOutput ? tile.rows_in(in.y) : dy, r, lane);
      [[maybe_unused]] BitsIn<W> bits[kFlight];
      if constexpr (kMask)
        for (int k = 0; k < kFlight; ++k) bits[k] = {in.mask, tile.offset(r + k, lane)};
      MILLRACE_UNROLL
      for (int k = 0; k < kFlight; ++k) {
        T kept[W];
        MILLRACE_SIMD
        for (int j = 0; j < W; ++j) {
          const float value = x.value(k, j);
          float g = last.value(k, j);
          if constexpr (kTwo) g = rounded_as<T>(g + other.value(k, j));
          if constexpr (!kSkip && !kTwo) kept[j] = last.rows[k][j];
          if constexpr (kMask) {
            g = bits[k][j] ? g : 0.0f;
          } else if constexpr (kFn != Activation::None) {
            const float z =
                kReadsOutput ? y.value(k, j) : rounded_as<T>(multiply_add(f.a[j], value, f.b[j]));
            g = rounded_fn_gradient<T, kFn>(g, z);
          }
          if constexpr (kSkip || kTwo) kept[j] = store_exact<T>(g);
          sum[j] += g;
          product[j] = multiply_add(g, value - mean[j], product[j]);
        }
        if constexpr (kWrites) {
          LanesOut<W, T> to(out + tile.offset(r + k, lane));
          MILLRACE_SIMD
          for (int j = 0; j < W; ++j) to.set(j, kept[j]);
        }
      }
    }
  }
  KOKKOS_INLINE_FUNCTION void finish(int, float&, float&) const {}
};

}  // namespace millrace::ops::tiles
