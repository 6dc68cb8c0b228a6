// SPDX-License-Identifier: Apache-2.0
#include "ops/last_one.hpp"

#include "ops/sums.hpp"
#include "tests/ops/device_values.hpp"

namespace millrace::ops {
namespace {

/// `shared` teams share each counter, and the last of them adds up their numbers, which follow from
/// the launch. Teams with one counter are far apart, so that several run at a time. Other threads
/// write and read than the one that counts.
struct SumOfCounter {
  static constexpr int kThreads = kTeamThreads;
  static constexpr std::size_t kSharedBytes = sizeof(std::uint32_t);
  std::uint32_t* counters;
  std::int64_t* numbers;
  std::int64_t* totals;
  std::int64_t num_counters;
  std::int64_t shared;
  std::int64_t launch;

  KOKKOS_FUNCTION void operator()(const device::Team& team, std::int64_t i) const {
    const std::int64_t own = i % num_counters;
    if (team.rank() == team.size() - 1) numbers[i] = launch * (i / num_counters + 1);
    if (!is_last(team, counters + own, static_cast<std::uint32_t>(shared),
                 reinterpret_cast<std::uint32_t*>(team.shared())))
      return;
    if (team.rank() != team.size() / 2) return;
    for (std::int64_t k = own; k < shared * num_counters; k += num_counters)
      totals[own] += numbers[k];
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
          SumOfCounter{counters.data(), numbers.data(), totals.data(), kCounters, shared, launch});
    device::fence(space);
    const std::int64_t launches = kLaunches * (kLaunches + 1) / 2;
    const auto expected = static_cast<double>(launches * (shared * (shared + 1) / 2));
    EXPECT_EQ(totals.values(), Values(kCounters, expected)) << shared << " teams";
    EXPECT_EQ(counters.values(), Values(kCounters, 0.0));
  }
}

}  // namespace
}  // namespace millrace::ops
