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
// once (16 bytes of 16-bit values), neighboring threads have neighboring strips, and chunks are
// short, so that there are enough threads. As there are many chunks then, teams join them in steps
// (norm_teams.hpp). The cut depends only on the shape and never on the number of threads, so sums
// over chunks are the same for every number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.hpp"
#include "core/float16.hpp"
#include "device/tensor.hpp"

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

/// Tile rows of a chunk: as many as fit into the cache of a core, or few enough that there are more
/// chunks than an accelerator has threads.
[[nodiscard]] inline std::int64_t rows_of_chunk(const Tiling& t) {
  if constexpr (device::kOnCores) {
    constexpr std::int64_t kChunkElements = 32768;
    return std::clamp<std::int64_t>(kChunkElements / t.width, 1, t.tile_rows);
  } else {
    constexpr std::int64_t kThreads = 131072;
    const std::int64_t rows =
        std::clamp<std::int64_t>(t.instances * t.tile_rows * t.strips / kThreads, 8, 128);
    return std::min(rows, t.tile_rows);
  }
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
  t.strips = (t.width + kLanes - 1) / kLanes;
  t.chunk_tile_rows = tiling::rows_of_chunk(t);
  t.chunks = (t.tile_rows + t.chunk_tile_rows - 1) / t.chunk_tile_rows;
  return t;
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

KOKKOS_INLINE_FUNCTION Strip strip_at(const Tiling& t, std::int64_t item) {
  Strip s;
  const Quotient of_strips = divide(item, t.strips);
  const Quotient of_chunks = divide(of_strips.quotient, t.chunks);
  s.chunk = of_chunks.remainder;
  s.instance = of_chunks.quotient;
  s.first_lane = of_strips.remainder * kLanes;
  s.lanes = t.width - s.first_lane < kLanes ? t.width - s.first_lane : kLanes;
  const std::int64_t first_row = s.chunk * t.chunk_tile_rows;
  s.rows =
      t.tile_rows - first_row < t.chunk_tile_rows ? t.tile_rows - first_row : t.chunk_tile_rows;
  s.offset = (s.instance * t.tile_rows + first_row) * t.width + s.first_lane;
  return s;
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
