// SPDX-License-Identifier: Apache-2.0
//
// One kernel in place of two: the teams of a launch write their parts of a result to memory, and
// the one that is done last goes on with all parts. Which team that is changes from run to run, so
// it must take the parts in the order of their numbers.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/teams.hpp"

namespace millrace::ops {

namespace last_one {

/// Orders this thread's accesses to memory before the fence with those after it, for all threads of
/// the device that meet in a counter.
KOKKOS_INLINE_FUNCTION void fence() {
#if MILLRACE_ON_HOST
  std::atomic_thread_fence(std::memory_order_acq_rel);
#else
  Kokkos::memory_fence();
#endif
}

/// Adds one and returns the value before.
KOKKOS_INLINE_FUNCTION std::uint32_t count(std::uint32_t* counter) {
#if MILLRACE_ON_HOST
  return std::atomic_ref<std::uint32_t>(*counter).fetch_add(1, std::memory_order_acq_rel);
#else
  return Kokkos::atomic_fetch_add(counter, 1u);
#endif
}

}  // namespace last_one

/// Counts this team done and tells all of its threads whether it is the last of `teams` teams that
/// share `counter`; it may then read what the others wrote before their calls. All threads of each
/// team call this once. The counter is zero before the kernel, and again after it. `answer` is a
/// word of the team's shared memory that nothing else uses.
KOKKOS_INLINE_FUNCTION bool is_last(const device::Team& team, std::uint32_t* counter,
                                    std::uint32_t teams, std::uint32_t* answer) {
  last_one::fence();
  team.wait();
  if (team.rank() == 0) {
    const bool last = last_one::count(counter) + 1 == teams;
    if (last) *counter = 0;  // nobody counts any more
    *answer = last ? 1 : 0;
  }
  team.wait();
  const bool last = *answer != 0;
  if (last) last_one::fence();
  return last;
}

}  // namespace millrace::ops
