// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/portable.hpp"

namespace millrace::ops::tiles {

inline constexpr int kRows = 128;  ///< of a tile
inline constexpr int kPartRows = 16;
inline constexpr int kMostColumns = 128;

/// How an activation of [rows][channels] is cut into tiles (ops/cutlass/tile_sums.hpp).
struct TileShape {
  std::int64_t rows = 0;
  std::int64_t channels = 0;

  /// Whether it can be: every part of a tile has all of its rows or none.
  [[nodiscard]] bool fits() const {
    return rows % kPartRows == 0 && channels % (kMostColumns / 2) == 0;
  }
  /// Channels of a tile.
  [[nodiscard]] MILLRACE_FUNCTION int columns() const {
    return channels % kMostColumns == 0 ? kMostColumns : kMostColumns / 2;
  }
  /// Tiles of the same channels.
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t tiles() const { return (rows + kRows - 1) / kRows; }
  [[nodiscard]] MILLRACE_FUNCTION int rows_of(std::int64_t tile) const {
    const std::int64_t left = rows - tile * kRows;
    return left < kRows ? static_cast<int>(left) : kRows;
  }
  /// Floats that are left of all tiles.
  [[nodiscard]] std::int64_t floats() const { return 2 * tiles() * channels; }
};

}  // namespace millrace::ops::tiles
