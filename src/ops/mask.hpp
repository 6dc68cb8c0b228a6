// SPDX-License-Identifier: Apache-2.0
//
// Masks have a bit for each element of an activation, eight of them in a byte. Channels are a
// multiple of eight, so that the bits of a byte are written by one work item.
#pragma once

#include <cstdint>

#include "ops/lanes.hpp"

namespace millrace::ops {

/// The bits of W neighbors, of which the first is element `at`.
template <int W>
class BitsIn {
 public:
  BitsIn() = default;
  KOKKOS_INLINE_FUNCTION BitsIn(const std::uint8_t* mask, std::int64_t at) {
    for (int k = 0; k < kBytes; ++k) bytes_[k] = mask[(at >> 3) + k];
    if constexpr (W < 8) bytes_[0] = static_cast<std::uint8_t>(bytes_[0] >> (at & 7));
  }
  KOKKOS_INLINE_FUNCTION bool operator[](int j) const { return (bytes_[j / 8] >> j % 8 & 1) != 0; }

 private:
  static constexpr int kBytes = (W + 7) / 8;
  std::uint8_t bytes_[kBytes];
};

/// Writes them. Lanes that are alone write theirs in order.
template <int W>
KOKKOS_INLINE_FUNCTION void store_bits(std::uint8_t* mask, std::int64_t at, const bool (&bits)[W]) {
  static_assert(W == 1 || W % 8 == 0);
  for (int first = 0; first < W; first += 8) {
    std::uint8_t* const byte = mask + ((at + first) >> 3);
    std::uint32_t all = W == 1 && (at & 7) != 0 ? *byte : 0;
    MILLRACE_UNROLL
    for (int j = 0; j < (W < 8 ? W : 8); ++j)
      all |= std::uint32_t{bits[first + j]} << (W == 1 ? at & 7 : j);
    *byte = static_cast<std::uint8_t>(all);
  }
}

}  // namespace millrace::ops
