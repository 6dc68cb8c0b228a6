// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices on cores: tiles of sums that stay in vector registers while the sum over k
// is made. A sum takes one product after the other, each rounded once together with the sum (fused
// multiply-add), so that it has the same bits at every instruction level.
//
//   AVX-512   8 rows x 32 columns   16 of 32 registers, 8 x 2 additions on their way
//   AVX2      6 rows x 16 columns   12 of 16 registers
//
// Measured on one core of an Intel Xeon (model 207) with operands in its caches, in shares of the
// peak: 82, 94 and 98 % for sums of 16, 64 and 256 products; AVX2 78, 90 and 97 %.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/instruction_level.hpp"
#include "ops/lanes.hpp"
#include "ops/tiling.hpp"

// A loop over the columns of a tile: GCC makes vectors of the loop, clang of its unrolled
// statements.
#if defined(__clang__)
#define MILLRACE_COLUMNS MILLRACE_UNROLL
#else
#define MILLRACE_COLUMNS MILLRACE_SIMD
#endif

namespace millrace::ops {

/// Rows of a product must be a multiple of this.
inline constexpr std::int64_t kProductRows = 8;
/// Columns of a product must be a multiple of this; multiples of 32 are faster.
inline constexpr std::int64_t kProductColumns = 16;

/// An operand: element (i, j) is data[i * row + j * column].
struct ProductOperand {
  const float* data;
  std::int64_t row;
  std::int64_t column = 1;
};

/// c[m][n] = sum over k < depth, which is at least 1, of a(m, k) b(k, n), for kRows rows and
/// kColumns columns, added to what is in c if `add`. Columns of b must be neighbors.
template <int kRows, int kColumns>
KOKKOS_FORCEINLINE_FUNCTION void register_tile(float* c, std::int64_t c_row,
                                               const ProductOperand& a, const ProductOperand& b,
                                               std::int64_t depth, bool add) {
  float sums[kRows][kColumns];
  MILLRACE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    const float left = a.data[m * a.row];
    MILLRACE_COLUMNS
    for (int n = 0; n < kColumns; ++n)
      sums[m][n] = std::fma(left, b.data[n], add ? c[m * c_row + n] : 0.0f);
  }
  for (std::int64_t k = 1; k < depth; ++k) {
    const float* const right = b.data + k * b.row;
    MILLRACE_UNROLL
    for (int m = 0; m < kRows; ++m) {
      const float left = a.data[m * a.row + k * a.column];
      MILLRACE_COLUMNS
      for (int n = 0; n < kColumns; ++n) sums[m][n] = std::fma(left, right[n], sums[m][n]);
    }
  }
  MILLRACE_UNROLL
  for (int m = 0; m < kRows; ++m) {
    MILLRACE_COLUMNS
    for (int n = 0; n < kColumns; ++n) c[m * c_row + n] = sums[m][n];
  }
}

#undef MILLRACE_COLUMNS

/// The same for `rows` rows from `first` on, as far as tiles fit; returns the first row that is
/// left.
template <int kRows, int kColumns>
KOKKOS_FORCEINLINE_FUNCTION std::int64_t multiply_tiles(float* c, std::int64_t c_row,
                                                        const ProductOperand& a,
                                                        const ProductOperand& b, std::int64_t first,
                                                        std::int64_t rows, std::int64_t columns,
                                                        std::int64_t depth, bool add) {
  for (std::int64_t n = 0; n < columns; n += kColumns)
    for (std::int64_t m = first; m + kRows <= rows; m += kRows)
      register_tile<kRows, kColumns>(c + m * c_row + n, c_row,
                                     {a.data + m * a.row, a.row, a.column}, {b.data + n, b.row},
                                     depth, add);
  return first + (rows - first) / kRows * kRows;
}

/// The same for any multiple of kProductRows and kProductColumns, within a function that is
/// compiled for instruction_level().
KOKKOS_FORCEINLINE_FUNCTION void multiply(float* c, std::int64_t c_row, const ProductOperand& a,
                                          const ProductOperand& b, std::int64_t rows,
                                          std::int64_t columns, std::int64_t depth, bool add) {
  if (instruction_level() == InstructionLevel::Avx512) {
    if (columns % 32 == 0)
      multiply_tiles<8, 32>(c, c_row, a, b, 0, rows, columns, depth, add);
    else
      multiply_tiles<8, 16>(c, c_row, a, b, 0, rows, columns, depth, add);
  } else {
    auto left = multiply_tiles<6, 16>(c, c_row, a, b, 0, rows, columns, depth, add);
    left = multiply_tiles<4, 16>(c, c_row, a, b, left, rows, columns, depth, add);
    multiply_tiles<2, 16>(c, c_row, a, b, left, rows, columns, depth, add);
  }
}

}  // namespace millrace::ops
