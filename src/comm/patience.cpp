// SPDX-License-Identifier: Apache-2.0
#include "comm/patience.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>

namespace millrace::comm {

void Patience::pause() {
  constexpr int kLooks = 20;  // messages that are about to arrive need no sleep
  constexpr std::chrono::microseconds kLongest{200};
  if (!sleeps_ || looks_++ < kLooks) return;
  std::this_thread::sleep_for(sleep_);
  sleep_ = std::min(2 * sleep_, kLongest);
}

void end_sleeps_on_time() noexcept { ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

}  // namespace millrace::comm
