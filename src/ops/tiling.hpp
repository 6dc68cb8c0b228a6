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
// On CPUs a strip is several vector registers wide. On GPUs it is one element, so that neighboring
// threads access neighboring addresses. The cut depends only on the shape and never on the number
// of threads, so sums over chunks are the same for every number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/tensor.hpp"

// Lanes of a strip are independent even if output and input are the same buffer, which compilers
// cannot prove.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define MILLRACE_SIMD
#else
#define MILLRACE_SIMD _Pragma("omp simd")
#endif

namespace millrace::ops {

inline constexpr int kLanes = device::kHostAccessible ? 128 : 1;

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

[[nodiscard]] inline Tiling make_tiling(std::int64_t instances, std::int64_t rows,
                                        std::int64_t channels) {
  constexpr std::int64_t kChunkElements = 32768;
  Tiling t;
  t.instances = instances;
  t.channels = channels;
  while (t.tile < kLanes && (t.tile * channels) % kLanes != 0 && rows % (t.tile * 2) == 0) {
    t.tile *= 2;
  }
  t.width = t.tile * channels;
  t.tile_rows = rows / t.tile;
  t.strips = (t.width + kLanes - 1) / kLanes;
  t.chunk_tile_rows = std::clamp<std::int64_t>(kChunkElements / t.width, 1, t.tile_rows);
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
  const std::int64_t strip = item % t.strips;
  s.chunk = item / t.strips % t.chunks;
  s.instance = item / t.strips / t.chunks;
  s.first_lane = strip * kLanes;
  s.lanes = t.width - s.first_lane < kLanes ? t.width - s.first_lane : kLanes;
  const std::int64_t first_row = s.chunk * t.chunk_tile_rows;
  s.rows =
      t.tile_rows - first_row < t.chunk_tile_rows ? t.tile_rows - first_row : t.chunk_tile_rows;
  s.offset = (s.instance * t.tile_rows + first_row) * t.width + s.first_lane;
  return s;
}

/// Calls body.template run<W>(strip, lane): once with W = kLanes for a full strip, otherwise once
/// per lane with W = 1. Per-lane arithmetic must not depend on W.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_lanes(const Body& body, const Strip& strip) {
  if (strip.lanes == kLanes) {
    body.template run<kLanes>(strip, 0);
  } else {
    for (std::int64_t lane = 0; lane < strip.lanes; ++lane) body.template run<1>(strip, lane);
  }
}

}  // namespace millrace::ops
