// SPDX-License-Identifier: Apache-2.0
//
// Sums by a team (device/teams.hpp) in a fixed order. Each of kTeamLanes lanes sums its own values
// in shared memory, neighboring lanes neighboring values, and the lanes are joined as a tree. The
// order depends only on the number of values and not on the number of threads.
#pragma once

#include "device/teams.hpp"
#include "ops/accumulator.hpp"

namespace millrace::ops {

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

}  // namespace millrace::ops
