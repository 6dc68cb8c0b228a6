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
// On cores one thread computes the whole tile, row by row, with vectors along the columns. Each sum
// adds its products in ascending order of k, whatever the device.
//
// An operand gives keys for its two indices and the value for a pair of keys, so that divisions are
// done once for a row or column and not for each element.
#pragma once

#include <cstdint>

#include "device/teams.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// Sizes of a tile.
template <int kRowsOfTile, int kColumnsOfTile>
struct TileSizes {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kColumns = kColumnsOfTile;
  static constexpr bool kOneThread = MILLRACE_ON_HOST == 1;
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
/// and functions outer(batch, index), inner(batch, k) and value(outer, inner). `Store` is called as
/// store(batch, part, m, n, sum).
template <class Sizes, class A, class B, class Store>
struct TileProduct {
  static constexpr int kRows = Sizes::kRows;
  static constexpr int kColumns = Sizes::kColumns;
  static constexpr int kDepth = Sizes::kDepth;
  static constexpr int kThreads = Sizes::kThreads;

  /// What a team shares. Keys of indices past the end are those of the last one; what is computed
  /// from them is not stored.
  struct Shared {
    alignas(64) float a[kRows][kDepth];
    alignas(64) float b[kDepth][kColumns];
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

  [[nodiscard]] std::int64_t row_tiles() const { return (shape.rows + kRows - 1) / kRows; }
  [[nodiscard]] std::int64_t column_tiles() const {
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
    const Quotient column = divide(i, (shape.columns + kColumns - 1) / kColumns);
    const Quotient row = divide(column.quotient, (shape.rows + kRows - 1) / kRows);
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

  /// Copies the slice [k, k + depth) of both operands; zeros up to kDepth.
  KOKKOS_INLINE_FUNCTION void copy_slices(const device::Team& team, Shared& shared, const Tile& t,
                                          std::int64_t k, int depth) const {
    for (int d = team.rank(); d < depth; d += team.size()) {
      shared.a_inner[d] = left.inner(t.batch, k + d);
      shared.b_inner[d] = right.inner(t.batch, k + d);
    }
    team.wait();
    for (int i = team.rank(); i < kRows * kDepth; i += team.size()) {
      const int m = A::kInnerIsDense ? i / kDepth : i % kRows;
      const int d = A::kInnerIsDense ? i % kDepth : i / kRows;
      shared.a[m][d] = d < depth ? left.value(shared.rows[m], shared.a_inner[d]) : 0.0f;
    }
    for (int i = team.rank(); i < kColumns * kDepth; i += team.size()) {
      const int n = B::kInnerIsDense ? i / kDepth : i % kColumns;
      const int d = B::kInnerIsDense ? i % kDepth : i / kColumns;
      shared.b[d][n] = d < depth ? right.value(shared.columns[n], shared.b_inner[d]) : 0.0f;
    }
    team.wait();
  }

  /// Adds the products of a slice to the sums of this thread.
  template <int kOwnRows, int kOwnColumns>
  KOKKOS_INLINE_FUNCTION static void multiply(float (&sums)[kOwnRows][kOwnColumns],
                                              const Shared& shared, int row, int column) {
    constexpr int kAtOnce = 4;  // sums stay in registers meanwhile
    static_assert(kDepth % kAtOnce == 0);
    for (int m = 0; m < kOwnRows; ++m) {
      for (int d = 0; d < kDepth; d += kAtOnce) {
        const float* const a = &shared.a[row + m][d];
        MILLRACE_SIMD
        for (int n = 0; n < kOwnColumns; ++n) {
          float sum = sums[m][n];
          sum += a[0] * shared.b[d][column + n];
          sum += a[1] * shared.b[d + 1][column + n];
          sum += a[2] * shared.b[d + 2][column + n];
          sum += a[3] * shared.b[d + 3][column + n];
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
      copy_slices(team, shared, t, k, static_cast<int>(smaller(kDepth, t.last - k)));
      multiply(sums, shared, row, column);
      team.wait();
    }
    for (int m = 0; m < Sizes::kThreadRows; ++m)
      for (int n = 0; n < Sizes::kThreadColumns; ++n)
        if (t.row + row + m < shape.rows && t.column + column + n < shape.columns)
          store(t.batch, t.part, t.row + row + m, t.column + column + n, sums[m][n]);
  }

 private:
  KOKKOS_INLINE_FUNCTION static std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
  }
};

}  // namespace millrace::ops
