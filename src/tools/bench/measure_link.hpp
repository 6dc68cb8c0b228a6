// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"

namespace millrace::comm {

/// How fast messages are. A message of n bytes takes latency + n / bandwidth.
struct LinkSpeed {
  double latency = 0.0;  ///< seconds
  double bytes_per_second = 0.0;
  double exchanged_per_second = 0.0;  ///< bytes each way, while both ends send
};

/// What measure_link() takes, roughly, however slow the link is.
inline constexpr double kLinkSeconds = 20.0;

/// Measures messages between the first and the last rank, which go to and fro. Other work on the
/// machines only delays messages: the latency is the shortest of many, and the bandwidth that which
/// a quarter of the large ones reach, because a single one may meet a burst of the link. The result
/// is rank 0's. Collective; for at least two ranks.
[[nodiscard]] LinkSpeed measure_link(const World& world);

enum class Side : std::uint8_t { Leads, Answers };

/// How often a message is sent: `least` times, and more often up to `most` within `seconds`.
struct Rounds {
  bool at_once = false;  ///< both ends send at the same time, and not in turn
  int least = 1;
  int most = 1;
  double seconds = 0.0;
};

/// Seconds of messages of so many bytes to `peer` and back, halved if in turn, shortest first. The
/// side that leads decides when it ends; both call this. `now` is a clock in seconds.
[[nodiscard]] std::vector<double> message_seconds(Transport& transport, int peer, Side side,
                                                  std::int64_t bytes, const Rounds& rounds,
                                                  const std::function<double()>& now);

}  // namespace millrace::comm
