// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/portable.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// How teams sum over the rows of an activation (norm_teams.hpp). Depends on the shape only.
struct NormTeamShape {
  static constexpr int kChunks = 8;  ///< of a block
  static constexpr int kStrips = 32;

  Tiling tiling;
  std::int64_t sets;     ///< in an instance
  bool apart;            ///< whether each column has its own sets, which then are its lanes
  std::int64_t columns;  ///< in an instance, like blocks and groups
  std::int64_t blocks;
  std::int64_t fan = 1;  ///< blocks in a group; 1: blocks are joined in one step
  std::int64_t groups = 0;
  std::int64_t instance_fan = 1;  ///< instances that are joined in the first of two steps
  std::int64_t instance_groups;

  NormTeamShape(const Tiling& t, std::int64_t sets_of_instance)
      : tiling(t),
        sets(sets_of_instance),
        apart(t.instances == 1 && t.tile == 1 && sets == t.channels),
        columns((t.strips + kStrips - 1) / kStrips),
        blocks((t.chunks + kChunks - 1) / kChunks) {
    // Both steps are equally long.
    while (instance_fan * instance_fan < tiling.instances) ++instance_fan;
    instance_groups = (tiling.instances + instance_fan - 1) / instance_fan;
    constexpr std::int64_t kFewBlocks = 32;
    if (blocks <= kFewBlocks) return;
    while (fan * fan < blocks) ++fan;
    groups = (blocks + fan - 1) / fan;
  }

  [[nodiscard]] std::int64_t teams() const { return tiling.instances * blocks * columns; }
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t counters_of_instance() const {
    return columns * (groups + 1) + 1;
  }
  /// Counters that are zero before and after a kernel.
  [[nodiscard]] std::int64_t counters() const {
    return instance_counters_at() + instance_groups + 1;
  }
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t instance_counters_at() const {
    return tiling.instances * counters_of_instance();
  }

  // Places in the scratch: totals, blocks and groups, as [instance][block][2][width]. A single
  // block is the total.
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t blocks_at() const {
    return blocks > 1 ? floats_of(1) : 0;
  }
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t groups_at() const {
    return blocks_at() + floats_of(blocks);
  }
  [[nodiscard]] std::int64_t scratch_floats() const { return groups_at() + floats_of(groups); }
  /// The tiling of the totals.
  [[nodiscard]] Tiling whole() const {
    Tiling t = tiling;
    t.chunks = 1;
    t.chunk_tile_rows = t.tile_rows;
    return t;
  }

 private:
  [[nodiscard]] MILLRACE_FUNCTION std::int64_t floats_of(std::int64_t parts) const {
    return 2 * tiling.instances * parts * tiling.width;
  }
};

}  // namespace millrace::ops
