// SPDX-License-Identifier: Apache-2.0
//
// The first of two levels of a sum over the chunks of a tiling (joined() in tiling.hpp): groups of
// neighboring chunks become one. Chunks have two values for each lane: [instance][chunk][2][width].
#pragma once

#include "ops/norm.hpp"

namespace millrace::ops {

struct ChunkJoin {
  Tiling fine;
  Tiling coarse;
  std::int64_t fan;      ///< chunks in a group; 1: there is one level only
  float* joined;         ///< values of the groups, in the order of chunks
  const float* partial;  ///< values of the chunks
};

/// The join of the chunks in `scratch`, which has room for both levels.
[[nodiscard]] inline ChunkJoin join_of_chunks(const NormShape& shape, float* scratch) {
  const Tiling& t = shape.tiling;
  return {t, joined(t), joined_chunks(t), scratch + shape.chunk_floats(), scratch};
}

/// A lane of a group: chunks [first, last).
struct ChunkGroup {
  std::int64_t first;
  std::int64_t last;
  const float* values;  ///< of the first chunk of the instance; the next are 2 x width further
  float* out;
};

/// Lane number i of all groups, which have `lanes` lanes each: the width, or twice as many.
KOKKOS_INLINE_FUNCTION ChunkGroup group_at(const ChunkJoin& join, std::int64_t lanes,
                                           std::int64_t i) {
  const Quotient lane = divide(i, lanes);
  const Quotient group = divide(lane.quotient, join.coarse.chunks);
  const std::int64_t step = 2 * join.fine.width;
  const std::int64_t first = group.remainder * join.fan;
  const std::int64_t end = first + join.fan;
  return {first, end < join.fine.chunks ? end : join.fine.chunks,
          join.partial + group.quotient * join.fine.chunks * step + lane.remainder,
          join.joined + lane.quotient * step + lane.remainder};
}

}  // namespace millrace::ops
