// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/world.hpp"

namespace millrace::comm {

/// How fast messages are. A message of n bytes takes latency + n / bandwidth.
struct LinkSpeed {
  double latency = 0.0;  ///< seconds
  double bytes_per_second = 0.0;
};

/// Measures messages between the first and the last rank, which go to and fro: medians of many. The
/// result is rank 0's. Collective; for at least two ranks.
[[nodiscard]] LinkSpeed measure_link(const World& world);

}  // namespace millrace::comm
