// SPDX-License-Identifier: Apache-2.0
//
// Long sums in a fixed order, so that the bits are those of every layout and every number of
// threads.
#pragma once

#include <cstdint>

#include "device/teams.hpp"
#include "ops/accumulator.hpp"
#include "ops/tiling.hpp"

namespace millrace::ops {

// ---- on cores

inline constexpr int kSumLanes = 16;

/// The sum of x(k)^2 over k < n. Element k goes to lane k % kSumLanes, and the lanes are added as a
/// tree, so the order of summation depends on n only.
template <class Value>
KOKKOS_INLINE_FUNCTION Accumulator sum_of_squares(std::int64_t n, const Value& x) {
  Accumulator lanes[kSumLanes] = {};
  const std::int64_t whole = n / kSumLanes * kSumLanes;
  for (std::int64_t k = 0; k < whole; k += kSumLanes) {
    MILLRACE_SIMD
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const auto value = static_cast<Accumulator>(x(k + lane));
      lanes[lane] += value * value;
    }
  }
  for (std::int64_t k = whole; k < n; ++k) {
    const auto value = static_cast<Accumulator>(x(k));
    lanes[k - whole] += value * value;
  }
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

// ---- by a team (device/teams.hpp)
//
// Each of kTeamLanes lanes sums its own values in shared memory, neighboring lanes neighboring
// values, and the lanes are joined as a tree. The order depends only on the number of values and
// not on the number of threads.

inline constexpr int kTeamLanes = 128;
inline constexpr int kTeamThreads = device::threads_of_team(kTeamLanes);

/// Joins kTeamLanes values in shared memory with Join::join(a, b); the result is lanes[0]. Waits
/// for the team before and after.
template <class Join, class Value>
KOKKOS_INLINE_FUNCTION void join_lanes(const device::Team& team, Value* lanes) {
  team.wait();
  for (int half = kTeamLanes / 2; half > 0; half /= 2) {
    for (int lane = team.rank(); lane < half; lane += team.size())
      lanes[lane] = Join::join(lanes[lane], lanes[lane + half]);
    team.wait();
  }
}

struct Plus {
  template <class Value>
  KOKKOS_INLINE_FUNCTION static Value join(Value a, Value b) {
    return a + b;
  }
};

/// The sum of values(k)^2 over k < n, for every thread of the team. `lanes` is shared memory for
/// kTeamLanes values; the caller waits for the team before it is used again.
template <class Values>
KOKKOS_INLINE_FUNCTION Accumulator team_sum_of_squares(const device::Team& team, Accumulator* lanes,
                                                       std::int64_t n, const Values& values) {
  for (int lane = team.rank(); lane < kTeamLanes; lane += team.size()) {
    Accumulator sum{};
    for (std::int64_t k = lane; k < n; k += kTeamLanes) {
      const auto value = static_cast<Accumulator>(values(k));
      sum += value * value;
    }
    lanes[lane] = sum;
  }
  join_lanes<Plus>(team, lanes);
  return lanes[0];
}

// ---- of squares, on both

/// Sums the squares of the sequences of item i. `sequences.use(i, sum)` calls sum(k, n, values) for
/// some k below kSequences, each once; the result is squares[i x kSequences + k].
template <class Sequences>
struct SquaresOf {
  [[maybe_unused]] static constexpr int kThreads = kTeamThreads;
  static constexpr int kSequences = Sequences::kSequences;
  [[maybe_unused]] static constexpr std::size_t kSharedBytes =
      kSequences * kTeamLanes * sizeof(Accumulator);
  Sequences sequences;
  Accumulator* squares;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    sequences.use(i, [&](int k, std::int64_t n, const auto& values) {
      squares[i * kSequences + k] = sum_of_squares(n, values);
    });
  }
  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    auto* const lanes = reinterpret_cast<Accumulator*>(team.shared());
    sequences.use(i, [&](int k, std::int64_t n, const auto& values) {
      const Accumulator sum = team_sum_of_squares(team, lanes + k * kTeamLanes, n, values);
      if (team.rank() == 0) squares[i * kSequences + k] = sum;
    });
  }
};

template <std::size_t kLabelSize, class Sequences>
void sum_squares(const char (&label)[kLabelSize], const device::ExecutionSpace& space,
                 std::int64_t items, const Sequences& sequences, Accumulator* squares) {
  const SquaresOf<Sequences> sums{sequences, squares};
  if constexpr (device::kOnCores) {
    device::parallel(label, space, items, sums);
  } else {
    device::parallel_teams(label, space, items, sums);
  }
}

// ---- in two levels
//
// Parts of fixed length, which many work items compute, and their total in ascending order. The cut
// depends on the shape only.

/// Adds up parts in ascending order.
struct JoinParts {
  float* total;
  const float* parts;  // [part][element]
  std::int64_t elements, count;
  bool first;  ///< overwrites the total
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    float sum = 0.0f;
    for (std::int64_t p = 0; p < count; ++p) sum += parts[p * elements + i];
    total[i] = first ? sum : total[i] + sum;
  }
};

/// Bytes of scratch that add_channel_sums needs.
[[nodiscard]] std::int64_t channel_sums_bytes(std::int64_t channels);

/// totals = sums of each channel of x, [rows][channels], if `first`; else they are added. The
/// gradient of a bias.
template <class T>
void add_channel_sums(const device::ExecutionSpace& space, float* totals, float* scratch,
                      const T* x, std::int64_t rows, std::int64_t channels, bool first);

}  // namespace millrace::ops
