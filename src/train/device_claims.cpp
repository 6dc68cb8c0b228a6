// SPDX-License-Identifier: Apache-2.0
#include "train/device_claims.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "core/text.hpp"

namespace millrace::training {
namespace {

constexpr const char* kRemedy =
    "a smaller `batch-size`, `recompute` segments, more `shards` or `precision` 16.32 need less";

/// The ranks on the device of rank `first`, which is the first of them.
std::vector<std::size_t> sharers(std::span<const DeviceClaim> ranks, std::size_t first) {
  std::vector<std::size_t> all = {first};
  for (std::size_t r = first + 1; r < ranks.size(); ++r)
    if (!ranks[r].device.empty() && ranks[r].device == ranks[first].device) all.push_back(r);
  return all;
}

bool has_sharer_before(std::span<const DeviceClaim> ranks, std::size_t rank) {
  const auto before = ranks.first(rank);
  return !ranks[rank].device.empty() && std::ranges::any_of(before, [&](const DeviceClaim& claim) {
    return claim.device == ranks[rank].device;
  });
}

std::string shared(std::span<const DeviceClaim> ranks, const std::vector<std::size_t>& sharers,
                   std::int64_t need, std::int64_t free) {
  std::vector<std::string> numbers;
  std::vector<std::string> needs;
  for (const std::size_t r : sharers) {
    numbers.push_back(std::to_string(r));
    needs.push_back(human_bytes(ranks[r].need));
  }
  return fmt::format(
      "ranks {} share the GPU {}, of whose memory they need {} ({}), but only {} are free: give "
      "each rank a GPU of its own (`select-ipus`), or use fewer ranks on it; {}",
      join(numbers, ", "), ranks[sharers.front()].device, human_bytes(need), join(needs, " + "),
      human_bytes(free), kRemedy);
}

}  // namespace

std::string why_too_large(std::span<const DeviceClaim> ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (has_sharer_before(ranks, r)) continue;
    const std::vector<std::size_t> on_device = sharers(ranks, r);
    std::int64_t need = 0;
    std::int64_t free = ranks[r].free;  // the least that one of them saw
    for (const std::size_t sharer : on_device) {
      need += ranks[sharer].need;
      free = std::min(free, ranks[sharer].free);
    }
    if (need <= free) continue;
    if (on_device.size() > 1) return shared(ranks, on_device, need, free);
    const std::string who = ranks.size() == 1 ? "the training" : fmt::format("rank {}", r);
    return fmt::format("{} needs {} of the GPU's memory but only {} are free: {}", who,
                       human_bytes(need), human_bytes(free), kRemedy);
  }
  return {};
}

std::string why_too_large(const DeviceClaim& own, const comm::World& world) {
  std::istringstream lines(
      world.gather_everywhere(fmt::format("{} {} {}\n", own.need, own.free, own.device)));
  std::vector<DeviceClaim> ranks(static_cast<std::size_t>(world.size()));
  for (DeviceClaim& claim : ranks) {
    lines >> claim.need >> claim.free;
    lines.get();  // the space before the name
    std::getline(lines, claim.device);
  }
  return why_too_large(ranks);
}

}  // namespace millrace::training
