// SPDX-License-Identifier: Apache-2.0
//
// Rows of bytes in registers of 64 bytes (level avx512), with the bits of the loops that compilers
// vectorize. They miss that sixteen values of a resampled row are sums of values at sixteen places,
// which two registers hold at usual scales, and that nobody reads a large image soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "core/bfloat16.hpp"

namespace millrace::io {

struct AxisWeights;

/// Values behind the end of a row that are read or written but do not matter.
inline constexpr std::size_t kWideSpare = 64;

/// The columns of a result, in blocks of sixteen values. Value: float or, in fixed point, integers.
template <class Value>
struct WideColumns {
  std::size_t taps = 0;
  std::size_t values = 0;           ///< of a result row
  bool far = false;                 ///< whether a block needs values of four registers
  std::vector<std::int32_t> from;   ///< of each block: the first source value
  std::vector<std::int32_t> index;  ///< of each value: its first source value, counted from there
  std::vector<Value> weight;        ///< of each block: for each tap those of all values

  /// `weights`: those of `columns` in this type. False if the processor cannot blend so or the
  /// image shrinks to less than about a quarter; then no other function may be called.
  [[nodiscard]] bool prepare(const AxisWeights& columns, const Value* weights);
  /// Rounds the weighted sums of `row`, which begins at the first column used, to bytes.
  void blend(const Value* row, std::uint8_t* out) const;
};

/// out = sum of rows of n bytes, each times its weight; in fixed point, rounded to bytes.
void blend_wide(std::span<const std::uint8_t* const> rows, const float* weight, std::size_t n,
                float* out);
void blend_wide(std::span<const std::uint8_t* const> rows, const std::int32_t* weight,
                std::size_t n, std::uint8_t* out);
void widen(const std::uint8_t* row, std::size_t n, std::int32_t* out);

/// Calls `function` with a constant for the usual numbers of taps, and with 0 for others.
template <class Function>
void with_taps(std::size_t taps, const Function& function) {
  if (taps == 2) return function(std::integral_constant<std::size_t, 2>{});
  if (taps == 3) return function(std::integral_constant<std::size_t, 3>{});
  if (taps == 4) return function(std::integral_constant<std::size_t, 4>{});
  if (taps == 5) return function(std::integral_constant<std::size_t, 5>{});
  if (taps == 7) return function(std::integral_constant<std::size_t, 7>{});
  function(std::integral_constant<std::size_t, 0>{});
}

/// Values after which means and scales repeat, for any number of channels up to four.
inline constexpr std::size_t kWidePattern = 48;

/// out = (byte - mean) x scale, rounded to nearest, for as many of `n` values as the processor can
/// do so; returns how many, a multiple of 2 kWidePattern. `mean` and `scale`: kWidePattern values.
[[nodiscard]] std::size_t normalise_wide(const std::uint8_t* bytes, const float* mean,
                                         const float* scale, std::size_t n, bfloat16* out);

}  // namespace millrace::io
