// SPDX-License-Identifier: Apache-2.0
//
// Loop order of the streaming kernels (norms, activations, sums) over an activation.
//
// An activation consists of `instances` blocks of `rows` rows of `channels` elements: one block for
// batch norm, one block per sample for group norm. Per-channel coefficients repeat with the
// channels. A few rows laid end to end (a *tile row* of `width` elements) can therefore share one
// set of coefficients in registers, even with only 16 channels. Work is cut into *chunks* of
// consecutive tile rows that fit into the cache and into *strips* of kLanes neighboring elements.
// One work item is (instance, chunk, strip).
//
//              strip 0    strip 1   ...            width = tile * channels
//   tile row 0 [ lanes ][ lanes ]
//   tile row 1 [       ][       ]   } a chunk
//   ...
//
// On CPUs a strip is several vector registers wide. On accelerators it is what a thread loads at
// once (16 bytes of 16-bit values), and neighboring threads have neighboring strips. Kernels that
// sum have long chunks there, which teams join in steps (norm_teams.hpp), and kernels that only
// write have short ones (for_writing). The cut depends only on the shape and never on the number of
// threads, so sums over chunks are the same for every number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "device/tensor.hpp"
#include "ops/variants.hpp"

// Lanes of a strip are independent even if output and input are the same buffer, which compilers
// cannot prove.
#if MILLRACE_ON_HOST
#define MILLRACE_SIMD _Pragma("omp simd")
#else
#define MILLRACE_SIMD
#endif

/// Instantiates a function template of this namespace for all storage types.
#define MILLRACE_INSTANTIATE(function)                      \
  template decltype(function<float>) function<float>;       \
  template decltype(function<bfloat16>) function<bfloat16>; \
  template decltype(function<float16>) function<float16>;

/// The same for a template with a second type.
#define MILLRACE_INSTANTIATE_WITH(function, type)                       \
  template decltype(function<float, type>) function<float, type>;       \
  template decltype(function<bfloat16, type>) function<bfloat16, type>; \
  template decltype(function<float16, type>) function<float16, type>;

namespace millrace::ops {

inline constexpr int kLanes = device::kOnCores ? 128 : 8;

/// Quotient and remainder. Accelerators divide 64-bit numbers slowly and 32-bit numbers quickly.
struct Quotient {
  std::int64_t quotient;
  std::int64_t remainder;
};
KOKKOS_INLINE_FUNCTION Quotient divide(std::int64_t number, std::int64_t by) {
  if constexpr (!device::kOnCores) {
    if (((number | by) >> 32) == 0) {
      const auto small = static_cast<std::uint32_t>(number);
      const auto divisor = static_cast<std::uint32_t>(by);
      return {small / divisor, small % divisor};
    }
  }
  return {number / by, number % by};
}

struct Tiling {
  std::int64_t instances = 1;
  std::int64_t channels = 1;
  std::int64_t tile = 1;       ///< rows in a tile row
  std::int64_t tile_rows = 1;  ///< tile rows in an instance
  std::int64_t width = 1;      ///< elements in a tile row
  std::int64_t strips = 1;
  std::int64_t chunks = 1;  ///< in an instance
  std::int64_t chunk_tile_rows = 1;

  [[nodiscard]] std::int64_t work_items() const { return instances * chunks * strips; }
};

namespace tiling {

/// What a team of an accelerator sums: chunks of neighboring strips.
inline constexpr int kTeamChunks = 8;
inline constexpr int kTeamStrips = 32;

// The cuts of accelerators. Measured on an H200 with 256 images of 56 x 56 x 256 in bfloat16, as
// shares of a copy: statistics 70 % with 784 teams, 62 % with 1,568 and 55 % with 3,136, as every
// block waits to be joined; norm + addition + ReLU 84 % with 128 rows a thread, 92 % with 16.

/// Teams that sum: all that the 132 multiprocessors of an H100 or H200 hold at once with 64
/// registers a thread. A few more would run alone at the end.
inline constexpr int kTeams = 528;
inline constexpr std::int64_t kMostSummed = 256;  ///< rows of a chunk
/// Threads that only write: several times as many as there can be at once.
inline constexpr std::int64_t kWriters = 524288;
inline constexpr int kMostWritten = 32;
/// Rows are read by fours (RowsIn in norm_teams.hpp).
inline constexpr std::int64_t kRowStep = 4;

[[nodiscard]] inline std::int64_t quotient_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Tile rows of a chunk that is summed: as many as fit into the cache of a core, or few enough that
/// there are kTeams teams.
[[nodiscard]] inline std::int64_t rows_to_sum(const Tiling& t) {
  if constexpr (device::kOnCores) {
    constexpr std::int64_t kChunkElements = 32768;
    return kChunkElements / t.width;
  } else {
    static const std::int64_t teams = variant("NORM_TEAMS", kTeams);
    const std::int64_t columns = quotient_up(t.strips, kTeamStrips);
    const std::int64_t chunks =
        kTeamChunks * std::max<std::int64_t>(1, teams / (t.instances * columns));
    const std::int64_t rounds = quotient_up(quotient_up(t.tile_rows, chunks), kMostSummed);
    const std::int64_t rows = quotient_up(t.tile_rows, chunks * rounds);
    return std::max<std::int64_t>(8, quotient_up(rows, kRowStep) * kRowStep);
  }
}

/// `t` with chunks of `rows` tile rows.
[[nodiscard]] inline Tiling with_chunks(Tiling t, std::int64_t rows) {
  t.chunk_tile_rows = std::clamp<std::int64_t>(rows, 1, t.tile_rows);
  t.chunks = quotient_up(t.tile_rows, t.chunk_tile_rows);
  return t;
}

}  // namespace tiling

[[nodiscard]] inline Tiling make_tiling(std::int64_t instances, std::int64_t rows,
                                        std::int64_t channels) {
  // A group of 32 neighboring threads of an accelerator works on one tile row.
  constexpr std::int64_t kMinimumWidth = device::kOnCores ? 0 : 32 * kLanes;
  Tiling t;
  t.instances = instances;
  t.channels = channels;
  while ((t.tile < kLanes && (t.tile * channels) % kLanes != 0) ||
         t.tile * channels < kMinimumWidth) {
    if (rows % (t.tile * 2) != 0) break;
    t.tile *= 2;
  }
  t.width = t.tile * channels;
  t.tile_rows = rows / t.tile;
  t.strips = tiling::quotient_up(t.width, kLanes);
  return tiling::with_chunks(t, tiling::rows_to_sum(t));
}

/// The tiling of a kernel that writes elements and sums nothing.
[[nodiscard]] inline Tiling for_writing(const Tiling& t) {
  if constexpr (device::kOnCores) return t;
  const std::int64_t rows = t.instances * t.tile_rows * t.strips / tiling::kWriters;
  constexpr std::int64_t kStep = tiling::kRowStep;
  static const std::int64_t most = variant("NORM_WRITTEN_ROWS", tiling::kMostWritten);
  return tiling::with_chunks(t, std::clamp(tiling::quotient_up(rows, kStep) * kStep, kStep, most));
}

/// The elements of one work item.
struct Strip {
  std::int64_t instance;
  std::int64_t chunk;
  std::int64_t first_lane;  ///< within the tile row
  std::int64_t lanes;       ///< kLanes, or less in the last strip
  std::int64_t offset;      ///< of its first element in the activation
  std::int64_t rows;        ///< tile rows in the chunk
};

KOKKOS_INLINE_FUNCTION Strip strip_at(const Tiling& t, std::int64_t instance, std::int64_t chunk,
                                      std::int64_t strip) {
  Strip s;
  s.chunk = chunk;
  s.instance = instance;
  s.first_lane = strip * kLanes;
  s.lanes = t.width - s.first_lane < kLanes ? t.width - s.first_lane : kLanes;
  const std::int64_t first_row = s.chunk * t.chunk_tile_rows;
  s.rows =
      t.tile_rows - first_row < t.chunk_tile_rows ? t.tile_rows - first_row : t.chunk_tile_rows;
  s.offset = (s.instance * t.tile_rows + first_row) * t.width + s.first_lane;
  return s;
}
KOKKOS_INLINE_FUNCTION Strip strip_at(const Tiling& t, std::int64_t item) {
  const Quotient of_strips = divide(item, t.strips);
  const Quotient of_chunks = divide(of_strips.quotient, t.chunks);
  return strip_at(t, of_chunks.quotient, of_chunks.remainder, of_strips.remainder);
}

/// Calls body.template run<W>(strip, lane): once with W = kLanes for a full strip, otherwise once
/// per lane with W = 1. Per-lane arithmetic must not depend on W. On accelerators the lanes of a
/// full strip are aligned as LanesIn and LanesOut need it.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_lanes(const Body& body, const Tiling& t, const Strip& strip) {
  const bool aligned = device::kOnCores || t.width % kLanes == 0;
  if (strip.lanes == kLanes && aligned) {
    body.template run<kLanes>(strip, 0);
  } else {
    for (std::int64_t lane = 0; lane < strip.lanes; ++lane) body.template run<1>(strip, lane);
  }
}

}  // namespace millrace::ops
