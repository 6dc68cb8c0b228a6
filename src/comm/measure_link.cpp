// SPDX-License-Identifier: Apache-2.0
#include "comm/measure_link.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "comm/transport.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// Median seconds of a message of this size: half of the way to and fro.
double seconds_of(const World& world, std::int64_t bytes, int rounds) {
  const bool first = world.rank() == 0;
  const bool last = world.rank() == world.size() - 1;
  std::vector<double> seconds;
  world.barrier();
  if (first || last) {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes), std::byte{1});
    std::vector<std::byte> in(out.size());
    const auto transport = make_transport(world, {.copy_within = copy});
    const int peer = first ? world.size() - 1 : 0;
    const int send = transport->prepare_send(out.data(), bytes, peer, first ? 0 : 1);
    const int receive = transport->prepare_receive(in.data(), bytes, peer, first ? 1 : 0);
    for (int round = 0; round < rounds; ++round) {
      const Timer timer;
      transport->start(receive);
      if (first) transport->start(send);
      transport->wait(receive);
      if (last) transport->start(send);
      transport->wait(send);
      seconds.push_back(timer.seconds() / 2.0);
    }
  }
  world.barrier();
  if (seconds.empty()) return 0.0;
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<std::size_t>(rounds / 2)];
}

}  // namespace

LinkSpeed measure_link(const World& world) {
  MILLRACE_ASSERT(world.size() >= 2);
  // Larger than the caches next to a core, as activations are.
  constexpr std::int64_t kLarge = 16 << 20;
  const double latency = seconds_of(world, 1, 1001);
  const double large = seconds_of(world, kLarge, 31);
  return {latency, static_cast<double>(kLarge) / std::max(large - latency, 1e-9)};
}

}  // namespace millrace::comm
