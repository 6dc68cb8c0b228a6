// SPDX-License-Identifier: Apache-2.0
//
// Sums over the rows of each lane in one launch, for accelerators. On them a tiling has far more
// chunks than one work item could add up, so they are joined in steps, each by the team that is
// done last (last_one.hpp) with what it needs:
//
//   block    up to 8 neighboring chunks of 32 neighboring strips, summed and joined by one team
//   group    neighboring blocks: as many as there are groups, about the square root of all
//   column   all groups of 32 strips: sums over all rows
//   unit     the columns that the results of a set of elements need; its last team computes them
//
// Sums over the instances of group norm then go on in two steps over groups of instances.
//
// The order of the sums depends on the shape only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/lanes.hpp"
#include "ops/last_one.hpp"
#include "ops/norm.hpp"
#include "ops/sums.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

/// Calls f(j, channel) for the W lanes starting at `lane`. Channels repeat with period t.channels.
template <int W, class F>
KOKKOS_INLINE_FUNCTION void for_channels(const Tiling& t, const Strip& s, std::int64_t lane,
                                         F&& f) {
  std::int64_t c = divide(s.first_lane + lane, t.channels).remainder;
  if (c + W <= t.channels) {
    for (int j = 0; j < W; ++j) f(j, c + j);
  } else {
    for (int j = 0; j < W; ++j) {
      f(j, c);
      if (++c == t.channels) c = 0;
    }
  }
}

/// a and b of z = a x + b for W lanes, read once per strip.
template <int W>
struct Affine {
  float a[W];
  float b[W];
  KOKKOS_INLINE_FUNCTION Affine(const Tiling& t, const Strip& s, std::int64_t lane,
                                const float* statistics, const float* gamma, const float* beta) {
    const float* mean = statistics + s.instance * t.channels;
    const float* inverse = mean + t.instances * t.channels;
    for_channels<W>(t, s, lane, [&](int j, std::int64_t c) {
      set_affine(a[j], b[j], gamma[c], beta[c], mean[c], inverse[c]);
    });
  }
};

/// Of a sample and W lanes: y * factor, and the gradient of y from that of the product.
template <int W, class T, bool kScaled>
class ScaledLanes {
 public:
  KOKKOS_INLINE_FUNCTION ScaledLanes(const Tiling& t, const Strip& s, std::int64_t lane,
                                     const Excitation<T>& e, std::int64_t sample) {
    if constexpr (!kScaled) return;
    const std::int64_t at = sample * t.channels + divide(s.first_lane + lane, t.channels).remainder;
    factor_ = LanesIn<W, T>(e.factor + at);
    if (e.dmean == nullptr) return;
    const LanesIn<W, T> dmean(e.dmean + at);
    for (int j = 0; j < W; ++j) share_[j] = store_as<T>(to_float(dmean[j]) * e.share);
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION T product(int j, T y) const {
    if constexpr (!kScaled) return y;
    return store_as<T>(to_float(y) * to_float(factor_[j]));
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION float gradient(int j, float dy) const {
    if constexpr (!kScaled) return dy;
    return rounded_as<T>(rounded_as<T>(dy * to_float(factor_[j])) + to_float(share_[j]));
  }

 private:
  LanesIn<W, T> factor_;
  T share_[W];  ///< of dmean that is the pixel's
};

/// How many rows of W values of each of `kInputs` arrays a thread of an accelerator reads before it
/// uses the first: at least 64 bytes, 64 KiB of a multiprocessor with 1,024 threads. Memory of 5
/// TB/s that answers after 0.8 us needs 30 KiB.
template <class T, int W, int kInputs>
inline constexpr int kRowsAtOnce = device::kOnCores || W == 1
                                       ? 1
                                       : 1 + 63 / (W * int{sizeof(T)} * kInputs);

/// Whether a core computes with a vector for so long that it looks ahead at less memory than it
/// must have on its way.
template <class T, Activation kFn>
inline constexpr bool kComputesLong = device::kOnCores && (sizeof(T) == 2 || !kExact<kFn>);

/// W values each of kRows rows that are `step` apart. On accelerators all of them are read first;
/// on cores, with kAhead, those of the next row but one are asked for.
template <int kRows, int W, class T, bool kAhead = false>
class RowsIn {
 public:
  KOKKOS_INLINE_FUNCTION RowsIn(const T* from, std::int64_t step) {
    for (int r = 0; r < kRows; ++r) rows_[r] = LanesIn<W, T>(from + r * step);
    if constexpr (kAhead && W > 1) {
      constexpr int kLine = 64 / int{sizeof(T)};
      MILLRACE_UNROLL
      for (int j = 0; j < W; j += kLine) __builtin_prefetch(from + 2 * step + j);
    }
  }
  KOKKOS_INLINE_FUNCTION const LanesIn<W, T>& operator[](int r) const { return rows_[r]; }

 private:
  LanesIn<W, T> rows_[kRows];
};

/// Calls rows.template operator()<n>(offset) for the rows of a strip from `lane` on, in order, with
/// n = kRows and then for the rest with n = 1.
template <int kRows, class Rows>
KOKKOS_INLINE_FUNCTION void for_rows(const Tiling& t, const Strip& s, std::int64_t lane,
                                     const Rows& rows) {
  std::int64_t offset = s.offset + lane;
  std::int64_t left = s.rows;
  if constexpr (kRows > 1) {
    for (; left >= kRows; left -= kRows, offset += kRows * t.width)
      rows.template operator()<kRows>(offset);
  }
  for (; left > 0; --left, offset += t.width) rows.template operator()<1>(offset);
}

/// Neighboring chunks, blocks or groups with their two values of a lane, in the order of rows.
struct LaneParts {
  const float* values;    ///< the first value in the first part
  std::int64_t step;      ///< from a part to the next
  std::int64_t second;    ///< from the first value to the second
  std::int64_t count;     ///< of parts
  std::int64_t rows;      ///< tile rows in a part
  std::int64_t all_rows;  ///< tile rows in all parts; the last part may have fewer than the others

  /// Calls use(rows, first value, second value) for each part in order. Eight parts are read at
  /// once, as each read waits for the memory of the device.
  template <class Use>
  KOKKOS_INLINE_FUNCTION void for_each(const Use& use) const {
    constexpr int kAtOnce = 8;
    for (std::int64_t part = 0; part < count; part += kAtOnce) {
      float ones[kAtOnce], twos[kAtOnce];
      for (int k = 0; k < kAtOnce; ++k) {
        const float* const at = values + (part + k < count ? part + k : count - 1) * step;
        ones[k] = at[0];
        twos[k] = at[second];
      }
      for (int k = 0; k < kAtOnce && part + k < count; ++k) {
        const std::int64_t left = all_rows - (part + k) * rows;
        use(static_cast<Accumulator>(left < rows ? left : rows), static_cast<Accumulator>(ones[k]),
            static_cast<Accumulator>(twos[k]));
      }
    }
  }
};

template <int W>
KOKKOS_INLINE_FUNCTION void store_lanes(float* out, const float (&values)[W]) {
  LanesOut<W, float> lanes(out);
  MILLRACE_SIMD
  for (int j = 0; j < W; ++j) lanes.set(j, values[j]);
}

/// For for_lanes(), around a body that writes two values for each lane.
template <class Body>
struct LanesTo {
  const Body& body;
  float* values;  ///< of the strip's first lane
  std::int64_t second;
  template <int W>
  KOKKOS_INLINE_FUNCTION void run(const Strip& strip, std::int64_t lane) const {
    body.template run<W>(strip, lane, values + lane, second);
  }
};

/// On cores: the two values of each lane of a chunk, as [instance][chunk][2][width].
template <class Body>
struct ChunksTo {
  Tiling t;
  Body body;
  float* partial;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const Strip s = strip_at(t, i);
    float* const out = partial + ((s.instance * t.chunks + s.chunk) * 2) * t.width + s.first_lane;
    for_lanes(LanesTo<Body>{body, out, t.width}, t, s);
  }
};

/// What the last team of a unit computes: the sets [first, last) of an instance.
struct NormSets {
  std::int64_t instance;
  std::int64_t first;
  std::int64_t last;
};

/// The kernel. Body writes the two values of a chunk's lanes, Join::join(parts, out, second) those
/// of several parts from theirs, and finish(team, sets) the results from the totals, which
/// begin the scratch: the values of one chunk with all rows. If Finish joins instances, then
/// finish.join_group(team, group, first, last) joins instances [first, last) of an instance group,
/// and finish.join_instances(team, groups) joins the groups.
template <class Body, class Join, class Finish>
struct NormTeams {
  static constexpr int kThreads = device::threads_of_team(256);
  [[maybe_unused]] static constexpr int kThreadsAtOnce = Body::kThreadsAtOnce;
  static constexpr std::int64_t kLanesOfTeam = NormTeamShape::kStrips * kLanes;
  static constexpr std::size_t kValues = 2 * NormTeamShape::kChunks * kLanesOfTeam;
  static constexpr std::size_t kSharedBytes = (kValues + 4) * sizeof(float);

  NormTeamShape s;
  Body body;
  Finish finish;
  NormScratch scratch;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    auto* const shared = reinterpret_cast<float*>(team.shared());
    auto* const answer = reinterpret_cast<std::uint32_t*>(shared + kValues);
    const Quotient of_columns = divide(i, s.columns);
    const Quotient of_blocks = divide(of_columns.quotient, s.blocks);
    const Place at{of_blocks.quotient, of_blocks.remainder, of_columns.remainder};
    const Tiling& t = s.tiling;
    const std::int64_t block_rows = NormTeamShape::kChunks * t.chunk_tile_rows;

    sum_chunks(team, at, shared);
    team.wait();
    const std::int64_t chunks = smaller(NormTeamShape::kChunks, t.chunks - first_chunk(at));
    join_lanes_of(team, at,
                  {shared, 2 * kLanesOfTeam, kLanesOfTeam, chunks, t.chunk_tile_rows,
                   smaller(block_rows, t.tile_rows - at.block * block_rows)},
                  blocks(at.instance) + 2 * at.block * t.width);
    if (s.blocks > 1 && !join_blocks(team, at, block_rows, answer)) return;
    const bool whole = s.columns > 1 && !s.apart;
    if (whole && !is_last(team, counters(at) + s.columns * (s.groups + 1),
                          static_cast<std::uint32_t>(s.columns), answer))
      return;
    team.wait();
    finish(team, s.apart ? NormSets{at.instance, at.column * kLanesOfTeam,
                                    smaller(s.sets, (at.column + 1) * kLanesOfTeam)}
                         : NormSets{at.instance, 0, s.sets});
    if constexpr (Finish::kJoinsInstances)
      if (!s.apart) join_instances(team, at.instance, answer);
  }

 private:
  struct Place {
    std::int64_t instance, block, column;
  };

  KOKKOS_INLINE_FUNCTION static std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION static std::int64_t first_chunk(const Place& at) {
    return at.block * NormTeamShape::kChunks;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION float* blocks(std::int64_t instance) const {
    return scratch.sums + s.blocks_at() + 2 * instance * s.blocks * s.tiling.width;
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION float* groups(std::int64_t instance) const {
    return scratch.sums + s.groups_at() + 2 * instance * s.groups * s.tiling.width;
  }
  /// Of an instance: for each column those of its groups and its own, then that of all columns.
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::uint32_t* counters(const Place& at) const {
    return scratch.counters + at.instance * s.counters_of_instance();
  }

  /// The chunks of the block, a strip of a chunk by each thread, to shared memory.
  KOKKOS_INLINE_FUNCTION void sum_chunks(const device::Team& team, const Place& at,
                                         float* shared) const {
    const Tiling& t = s.tiling;
    const std::int64_t first_strip = at.column * NormTeamShape::kStrips;
    for (int k = team.rank(); k < NormTeamShape::kChunks * NormTeamShape::kStrips;
         k += team.size()) {
      const int chunk = k / NormTeamShape::kStrips;
      const int strip = k % NormTeamShape::kStrips;
      if (first_chunk(at) + chunk >= t.chunks || first_strip + strip >= t.strips) continue;
      const Strip lanes = strip_at(t, at.instance, first_chunk(at) + chunk, first_strip + strip);
      float* const values = shared + 2 * chunk * kLanesOfTeam + strip * kLanes;
      for_lanes(LanesTo<Body>{body, values, kLanesOfTeam}, t, lanes);
    }
  }

  /// Joins parts, whose `values` are those of the column's first lane, to `out`, which begins with
  /// lane 0.
  KOKKOS_INLINE_FUNCTION void join_lanes_of(const device::Team& team, const Place& at,
                                            const LaneParts& parts, float* out) const {
    const std::int64_t width = s.tiling.width;
    const std::int64_t first = at.column * kLanesOfTeam;
    const std::int64_t lanes = smaller(kLanesOfTeam, width - first);
    for (std::int64_t lane = team.rank(); lane < lanes; lane += team.size()) {
      LaneParts own = parts;
      own.values += lane;
      Join::join(own, out + first + lane, width);
    }
  }

  /// Joins the blocks of a column in one step or two. Whether this team is the one that ends with
  /// the sums over all rows.
  KOKKOS_INLINE_FUNCTION bool join_blocks(const device::Team& team, const Place& at,
                                          std::int64_t block_rows, std::uint32_t* answer) const {
    const Tiling& t = s.tiling;
    const std::int64_t step = 2 * t.width;
    const std::int64_t lane = at.column * kLanesOfTeam;
    std::uint32_t* const counter = counters(at) + at.column * (s.groups + 1);
    LaneParts parts{blocks(at.instance) + lane, step, t.width, s.blocks, block_rows, t.tile_rows};
    if (s.fan > 1) {
      const std::int64_t group = at.block / s.fan;
      const std::int64_t first = group * s.fan;
      LaneParts own = parts;
      own.values += first * step;
      own.count = smaller(s.fan, s.blocks - first);
      own.all_rows = smaller(own.count * block_rows, t.tile_rows - first * block_rows);
      if (!is_last(team, counter + group, static_cast<std::uint32_t>(own.count), answer))
        return false;
      join_lanes_of(team, at, own, groups(at.instance) + group * step);
      parts.values = groups(at.instance) + lane;
      parts.count = s.groups;
      parts.rows = block_rows * s.fan;
    }
    if (!is_last(team, counter + s.groups, static_cast<std::uint32_t>(parts.count), answer))
      return false;
    join_lanes_of(team, at, parts, scratch.sums + at.instance * step);
    return true;
  }

  KOKKOS_INLINE_FUNCTION void join_instances(const device::Team& team, std::int64_t instance,
                                             std::uint32_t* answer) const {
    std::uint32_t* const counter = scratch.counters + s.instance_counters_at();
    const std::int64_t group = instance / s.instance_fan;
    const std::int64_t first = group * s.instance_fan;
    const std::int64_t last = smaller(first + s.instance_fan, s.tiling.instances);
    if (!is_last(team, counter + group, static_cast<std::uint32_t>(last - first), answer)) return;
    finish.join_group(team, group, first, last);
    if (!is_last(team, counter + s.instance_groups, static_cast<std::uint32_t>(s.instance_groups),
                 answer))
      return;
    finish.join_instances(team, s.instance_groups);
  }
};

}  // namespace millrace::ops
