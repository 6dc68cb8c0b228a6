// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/measure_link.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// The same on all ranks, of which only the first and the last have times. Collective.
std::vector<double> measured(const World& world, std::int64_t bytes, const Rounds& rounds) {
  const int last = world.size() - 1;
  std::vector<double> seconds;
  world.barrier();
  if (world.rank() == 0 || world.rank() == last) {
    const auto transport = make_transport(world, {.copy_within = copy});
    const Side side = world.rank() == 0 ? Side::Leads : Side::Answers;
    const Timer timer;
    seconds = message_seconds(*transport, last - world.rank(), side, bytes, rounds,
                              [&timer] { return timer.seconds(); });
  }
  world.barrier();
  return seconds;
}

/// Bytes of messages that are long enough to show the bandwidth, and short enough that several fit
/// into the time. Collective.
std::int64_t large_message(const World& world) {
  constexpr std::int64_t kLeast = 256 << 10;
  constexpr std::int64_t kMost = 16 << 20;  // more than the caches next to a core, as activations
  constexpr std::int64_t kEnoughNanoseconds = 200'000'000;
  std::int64_t bytes = kLeast;
  for (; bytes < kMost; bytes *= 2) {
    const std::vector<double> once = measured(world, bytes, {});
    const double seconds = world.rank() == 0 ? once.front() : 0.0;
    if (world.maximum(std::llround(1e9 * seconds)) > kEnoughNanoseconds) break;
  }
  return bytes;
}

}  // namespace

std::vector<double> message_seconds(Transport& transport, int peer, Side side, std::int64_t bytes,
                                    const Rounds& rounds, const std::function<double()>& now) {
  constexpr std::byte kMore{1};
  constexpr std::byte kLast{0};
  std::vector<std::byte> out(static_cast<std::size_t>(bytes), kMore);
  std::vector<std::byte> in(out.size());
  const bool leads = side == Side::Leads;
  const bool begins = leads || rounds.at_once;
  const int send = transport.prepare_send(out.data(), bytes, peer, leads ? 0 : 1);
  const int receive = transport.prepare_receive(in.data(), bytes, peer, leads ? 1 : 0);
  std::vector<double> seconds;
  const double begin = now();
  for (bool more = true; more;) {
    const auto round = static_cast<int>(seconds.size()) + 1;
    if (leads)
      more = round < rounds.least || (round < rounds.most && now() - begin < rounds.seconds);
    out.front() = more ? kMore : kLast;
    const double sent = now();
    transport.start(receive);
    if (begins) transport.start(send);
    transport.wait(receive);
    if (!begins) transport.start(send);
    transport.wait(send);
    seconds.push_back((now() - sent) / (rounds.at_once ? 1.0 : 2.0));
    if (!leads) more = in.front() == kMore;
  }
  std::ranges::sort(seconds);
  return seconds;
}

LinkSpeed measure_link(const World& world) {
  MILLRACE_ASSERT(world.size() >= 2);
  const std::vector<double> tiny =
      measured(world, 1, {.least = 20, .most = 2000, .seconds = 0.2 * kLinkSeconds});
  const std::int64_t bytes = large_message(world);
  Rounds rounds{.least = 3, .most = 31, .seconds = 0.25 * kLinkSeconds};
  const std::vector<double> large = measured(world, bytes, rounds);
  rounds.at_once = true;
  const std::vector<double> exchanges = measured(world, bytes, rounds);
  if (world.rank() != 0) return {};
  const double latency = tiny.front();
  const auto rate = [&](const std::vector<double>& times) {
    return static_cast<double>(bytes) / std::max(times[times.size() / 4] - latency, 1e-9);
  };
  return {latency, rate(large), rate(exchanges)};
}

}  // namespace millrace::comm
