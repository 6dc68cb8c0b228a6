// SPDX-License-Identifier: Apache-2.0
//
// Neighboring pixels of a row of an image in the registers of a thread, for depthwise convolutions
// on accelerators.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "device/parallel.hpp"
#include "ops/lanes.hpp"

namespace millrace::ops {

/// Accelerators compute with numbers of 32 bits faster; those of pixels and channels fit into them.
KOKKOS_INLINE_FUNCTION int as_int(std::int64_t number) { return static_cast<int>(number); }

/// W neighboring channels of N pixels; those outside the image are zeros.
template <int W, int N, class T>
class RowPixels {
 public:
  /// Reads pixel p from column `at` of a row of `width` pixels with `channels` values each.
  KOKKOS_INLINE_FUNCTION void load(int p, const T* row, int at, int width, int channels) {
    pixels_[p] = {};
    if (at >= 0 && at < width) pixels_[p] = *reinterpret_cast<const Words*>(row + at * channels);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION lanes::Pack<T, W> operator[](int p) const {
    return std::bit_cast<lanes::Pack<T, W>>(pixels_[p]);
  }

 private:
  // A compiler would select 16-bit values one by one.
  using Words = std::conditional_t<sizeof(lanes::Pack<T, W>) == lanes::kAccessBytes,
                                   lanes::Pack<std::uint32_t, 4>, lanes::Pack<T, W>>;
  Words pixels_[N];
};

}  // namespace millrace::ops
