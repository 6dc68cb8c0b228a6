// SPDX-License-Identifier: Apache-2.0
#include "ops/last_one.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "ops/team_sums.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

/// Teams share counters in neighborhoods of `shared` teams, and the last of each adds up their
/// numbers, which follow from the launch.
struct SumOfNeighborhood {
  static constexpr int kThreads = kTeamThreads;
  static constexpr std::size_t kSharedBytes = sizeof(std::uint32_t);
  std::uint32_t* counters;
  std::int64_t* numbers;
  std::int64_t* totals;
  std::int64_t shared;
  std::int64_t launch;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    const std::int64_t neighborhood = i / shared;
    if (team.rank() == 0) numbers[i] = launch * (i % shared + 1);
    if (!is_last(team, counters + neighborhood, static_cast<std::uint32_t>(shared),
                 reinterpret_cast<std::uint32_t*>(team.shared())))
      return;
    if (team.rank() != team.size() - 1) return;  // another thread than the one that counts
    for (std::int64_t k = 0; k < shared; ++k)
      totals[neighborhood] += numbers[neighborhood * shared + k];
  }
};

// A team that goes on too early adds an old number, and one that goes on twice adds all again.
TEST(LastOne, OfEachCounterSeesWhatTheOthersWrote) {
  constexpr std::int64_t kCounters = 50;
  constexpr std::int64_t kLaunches = 200;
  const device::ExecutionSpace space;
  for (const std::int64_t shared : {1, 2, 7, 100}) {
    DeviceValues<std::uint32_t> counters(Values(kCounters, 0.0));
    DeviceValues<std::int64_t> numbers(Values(static_cast<std::size_t>(kCounters * shared), 0.0));
    DeviceValues<std::int64_t> totals(Values(kCounters, 0.0));
    for (std::int64_t launch = 1; launch <= kLaunches; ++launch)
      device::parallel_teams(
          "last one", space, kCounters * shared,
          SumOfNeighborhood{counters.data(), numbers.data(), totals.data(), shared, launch});
    device::fence(space);
    const std::int64_t launches = kLaunches * (kLaunches + 1) / 2;
    const auto expected = static_cast<double>(launches * (shared * (shared + 1) / 2));
    EXPECT_EQ(totals.values(), Values(kCounters, expected)) << shared << " teams";
    EXPECT_EQ(counters.values(), Values(kCounters, 0.0));
  }
}

}  // namespace
}  // namespace millrace::ops
