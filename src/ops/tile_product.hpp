// SPDX-License-Identifier: Apache-2.0
//
// A product of two matrices that are never stored: C[m][n] = sum over k of A(m, k) B(k, n), where A
// and B look their elements up in images or kernels (an implicit GEMM). A team computes one tile of
// C. It copies a slice of A and B into its shared memory as float32, multiplies, and goes on to the
// next slice:
//
//                  B slice  kDepth x kColumns
//                 [        ]
//   A slice  [ ]  [ C tile ]     each thread keeps kThreadRows x kThreadColumns sums in registers
//   kRows    [ ]  [        ]
//   x kDepth
//
// On cores one thread computes the whole tile, row by row, with vectors along the columns, and
// copies with other code. Each sum adds its products in ascending order of k, whatever the device.
//
// An operand gives keys for its two indices and the place for a pair of keys, so that divisions are
// done once for a row or column and not for each element. Along one of its indices, the dense one,
// neighbors lie next to each other for a while (a run); on cores a run is copied with vectors.
#pragma once

#include <cstdint>

#include "device/teams.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// Sizes of a tile. On cores it is `kTaller` times as tall, so that copies of B are used longer.
template <int kRowsOfTile, int kColumnsOfTile, int kTaller = 1>
struct TileSizes {
  static constexpr int kRows = kRowsOfTile * (device::kOnCores ? kTaller : 1);
  static constexpr int kColumns = kColumnsOfTile;
  static constexpr bool kOneThread = device::kOnCores;
  static constexpr int kDepth = kOneThread ? 64 : 16;
  static constexpr int kThreadRows = kOneThread || kRows < 8 ? kRows : 8;
  static constexpr int kThreadColumns = kOneThread || kColumns < 8 ? kColumns : 8;
  static constexpr int kThreads = (kRows / kThreadRows) * (kColumns / kThreadColumns);
};

/// Work of a product: `batches` independent products, and the sum over k cut into `parts` parts.
struct ProductShape {
  std::int64_t batches = 1;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t depth = 1;
  std::int64_t parts = 1;
};

/// `A` and `B` have types Outer (the key of a row of A or a column of B) and Inner (the key of k),
/// and functions outer(batch, index), inner(batch, k), and for a pair of keys:
///
///   pointer(outer, inner)  the element, or null for a zero
///   run(outer, inner)      how many elements from it on lie next to each other along the dense
///                          index, which is k if kInnerIsDense
///
/// `Store` has a function row(batch, part, m), whose result takes the sums of that row as
/// row(n, sum).
template <class Sizes, class A, class B, class Store>
struct TileProduct {
  static constexpr int kRows = Sizes::kRows;
  static constexpr int kColumns = Sizes::kColumns;
  static constexpr int kDepth = Sizes::kDepth;
  static constexpr int kThreads = Sizes::kThreads;

  /// That of shared memory: device/teams.hpp.
  static constexpr std::size_t kAlignment = Sizes::kOneThread ? 64 : 16;

  /// What a team shares. Keys of indices past the end are those of the last one; what is computed
  /// from them is not stored.
  struct Shared {
    alignas(kAlignment) float a[kRows * kDepth];     ///< the dense index last
    alignas(kAlignment) float b[kDepth * kColumns];  ///< [k][column]
    typename A::Outer rows[kRows];
    typename B::Outer columns[kColumns];
    typename A::Inner a_inner[kDepth];
    typename B::Inner b_inner[kDepth];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Shared);

  ProductShape shape;
  A left;
  B right;
  Store store;

  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t row_tiles() const {
    return (shape.rows + kRows - 1) / kRows;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::int64_t column_tiles() const {
    return (shape.columns + kColumns - 1) / kColumns;
  }
  [[nodiscard]] std::int64_t teams() const {
    return shape.batches * shape.parts * row_tiles() * column_tiles();
  }

  /// The tile of a team.
  struct Tile {
    std::int64_t batch, part, row, column;  ///< the first row and column
    std::int64_t first, last;               ///< of k
  };
  [[nodiscard]] KOKKOS_INLINE_FUNCTION Tile tile_at(std::int64_t i) const {
    const Quotient column = divide(i, column_tiles());
    const Quotient row = divide(column.quotient, row_tiles());
    const Quotient part = divide(row.quotient, shape.parts);
    Tile t;
    t.batch = part.quotient;
    t.part = part.remainder;
    t.row = row.remainder * kRows;
    t.column = column.remainder * kColumns;
    t.first = shape.depth * t.part / shape.parts;
    t.last = shape.depth * (t.part + 1) / shape.parts;
    return t;
  }

  KOKKOS_INLINE_FUNCTION void find_keys(const device::Team& team, Shared& shared,
                                        const Tile& t) const {
    for (int m = team.rank(); m < kRows; m += team.size())
      shared.rows[m] = left.outer(t.batch, smaller(t.row + m, shape.rows - 1));
    for (int n = team.rank(); n < kColumns; n += team.size())
      shared.columns[n] = right.outer(t.batch, smaller(t.column + n, shape.columns - 1));
  }

  /// Strides of the copies.
  static constexpr int kRowStride = A::kInnerIsDense ? kDepth : 1;
  static constexpr int kRowDepthStride = A::kInnerIsDense ? 1 : kRows;

  /// Copies the slice [k, k + depth) of both operands; zeros up to kDepth.
  KOKKOS_INLINE_FUNCTION void copy_slices(const device::Team& team, Shared& shared, const Tile& t,
                                          std::int64_t k, int depth) const {
    for (int d = team.rank(); d < depth; d += team.size()) {
      shared.a_inner[d] = left.inner(t.batch, k + d);
      shared.b_inner[d] = right.inner(t.batch, k + d);
    }
    team.wait();
    const int rows = static_cast<int>(smaller(kRows, shape.rows - t.row));
    const int columns = static_cast<int>(smaller(kColumns, shape.columns - t.column));
    copy<kRows>(team, left, shared.rows, rows, shared.a_inner, depth, shared.a, kRowStride,
                kRowDepthStride);
    copy<kColumns>(team, right, shared.columns, columns, shared.b_inner, depth, shared.b, 1,
                   kColumns);
    team.wait();
  }

  /// Copies [0, count) x [0, depth) of an operand; zeros up to kCount and kDepth.
  template <int kCount, class Operand>
  KOKKOS_INLINE_FUNCTION static void copy(const device::Team& team, const Operand& operand,
                                          const typename Operand::Outer* outer, int count,
                                          const typename Operand::Inner* inner, int depth,
                                          float* to, int outer_stride, int depth_stride) {
    constexpr bool kInner = Operand::kInnerIsDense;
    if constexpr (Sizes::kOneThread) {
      // A short slice or tile leaves what was there before.
      if (count < kCount || depth < depth_of_products(depth))
        for (int i = 0; i < kCount * kDepth; ++i) to[i] = 0.0f;
      const int lines = kInner ? count : depth;
      const int length = kInner ? depth : count;
      const int line_stride = kInner ? outer_stride : depth_stride;
      const int stride = kInner ? depth_stride : outer_stride;
      for (int line = 0; line < lines; ++line)
        for (int i = 0; i < length;) {
          const auto& u = outer[kInner ? line : i];
          const auto& v = inner[kInner ? i : line];
          const int run = static_cast<int>(smaller(operand.run(u, v), length - i));
          copy_run(operand.pointer(u, v), run, to + line * line_stride + i * stride, stride);
          i += run;
        }
    } else {
      for (int i = team.rank(); i < kCount * kDepth; i += team.size()) {
        const int u = kInner ? i / kDepth : i % kCount;
        const int d = kInner ? i % kDepth : i / kCount;
        const auto* const from =
            u < count && d < depth ? operand.pointer(outer[u], inner[d]) : nullptr;
        to[u * outer_stride + d * depth_stride] = from != nullptr ? to_float(*from) : 0.0f;
      }
    }
  }

  template <class T>
  KOKKOS_INLINE_FUNCTION static void copy_run(const T* from, int count, float* to, int stride) {
    if (from == nullptr) {
      for (int j = 0; j < count; ++j) to[j * stride] = 0.0f;
    } else if (stride == 1) {
      MILLRACE_SIMD
      for (int j = 0; j < count; ++j) to[j] = to_float(from[j]);
    } else {
      for (int j = 0; j < count; ++j) to[j * stride] = to_float(from[j]);
    }
  }

  /// Products that are added while a sum stays in a register.
  static constexpr int kAtOnce = 4;
  static_assert(kDepth % kAtOnce == 0);
  /// How many products a slice of this depth needs; the rest of them are zeros.
  KOKKOS_INLINE_FUNCTION static int depth_of_products(int depth) {
    return Sizes::kOneThread ? (depth + kAtOnce - 1) / kAtOnce * kAtOnce : kDepth;
  }

  /// Adds the products of a slice to the sums of this thread.
  template <int kOwnRows, int kOwnColumns>
  KOKKOS_INLINE_FUNCTION static void multiply(float (&sums)[kOwnRows][kOwnColumns],
                                              const Shared& shared, int row, int column,
                                              int depth) {
    for (int d = 0; d < depth_of_products(depth); d += kAtOnce) {
      const float* const b = &shared.b[d * kColumns + column];
      for (int m = 0; m < kOwnRows; ++m) {
        const float* const a = &shared.a[(row + m) * kRowStride + d * kRowDepthStride];
        const float a0 = a[0];
        const float a1 = a[kRowDepthStride];
        const float a2 = a[2 * kRowDepthStride];
        const float a3 = a[3 * kRowDepthStride];
        MILLRACE_SIMD
        for (int n = 0; n < kOwnColumns; ++n) {
          float sum = sums[m][n];
          sum += a0 * b[n];
          sum += a1 * b[kColumns + n];
          sum += a2 * b[2 * kColumns + n];
          sum += a3 * b[3 * kColumns + n];
          sums[m][n] = sum;
        }
      }
    }
  }

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    Shared& shared = *reinterpret_cast<Shared*>(team.shared());
    const Tile t = tile_at(i);
    find_keys(team, shared, t);
    constexpr int kAcross = kColumns / Sizes::kThreadColumns;
    const int row = team.rank() / kAcross * Sizes::kThreadRows;
    const int column = team.rank() % kAcross * Sizes::kThreadColumns;
    float sums[Sizes::kThreadRows][Sizes::kThreadColumns] = {};
    for (std::int64_t k = t.first; k < t.last; k += kDepth) {
      const auto depth = static_cast<int>(smaller(kDepth, t.last - k));
      copy_slices(team, shared, t, k, depth);  // waits before it writes what multiply() reads
      multiply(sums, shared, row, column, depth);
    }
    for (int m = 0; m < Sizes::kThreadRows; ++m) {
      if (t.row + row + m >= shape.rows) return;
      const auto to = store.row(t.batch, t.part, t.row + row + m);
      MILLRACE_SIMD
      for (int n = 0; n < Sizes::kThreadColumns; ++n)
        if (t.column + column + n < shape.columns) to(t.column + column + n, sums[m][n]);
    }
  }

 private:
  KOKKOS_INLINE_FUNCTION static std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
  }
};

}  // namespace millrace::ops
