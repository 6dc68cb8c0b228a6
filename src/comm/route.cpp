// SPDX-License-Identifier: Apache-2.0
#include "comm/route.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/rank_messages.hpp"
#include "core/error.hpp"

namespace millrace::comm {
namespace {

/// What all ranks say, by rank; each says three lines. Collective.
std::vector<RankFacts> facts_of_all(const World& world, DeviceQueues& device) {
  std::istringstream lines(world.gather_everywhere(fmt::format(
      "{}\n{}\n{}\n", nccl_version(), of_this_machine(device.place()), wants_mpi() ? "mpi" : "")));
  std::vector<RankFacts> ranks(static_cast<std::size_t>(world.size()));
  for (RankFacts& rank : ranks) {
    std::string wish;
    std::getline(std::getline(std::getline(lines, rank.nccl), rank.device), wish);
    rank.wants_mpi = !wish.empty();
  }
  return ranks;
}

std::string describe(const Route& route, bool on_cores) {
  std::string text;
  switch (route.way) {
    case Way::Nccl:
      return fmt::format("by NCCL {} from device to device", nccl_version());
    case Way::Mpi:
      text = on_cores ? "by MPI" : "by MPI from device to device";
      break;
    case Way::Staged:
      text = "by MPI through page-locked host memory";
      break;
  }
  return route.reason.empty() ? text : fmt::format("{}, as {}", text, route.reason);
}

}  // namespace

bool wants_mpi() {
  const char* const text = std::getenv("MILLRACE_MESSAGES");
  if (text == nullptr || *text == '\0') return false;
  if (std::string_view(text) != "mpi")
    fail(ErrorKind::Usage, "MILLRACE_MESSAGES={}: use mpi, or unset it", text);
  return true;
}

Route choose_route(std::span<const RankFacts> ranks, Way otherwise) {
  const auto without = [&](std::string reason) { return Route{otherwise, std::move(reason)}; };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].wants_mpi) return without(fmt::format("MILLRACE_MESSAGES=mpi for rank {}", r));
    if (ranks[r].nccl.empty()) return without(fmt::format("rank {} has no NCCL", r));
    if (ranks[r].nccl != ranks[0].nccl)
      return without(
          fmt::format("rank 0 has NCCL {} and rank {} has {}", ranks[0].nccl, r, ranks[r].nccl));
    if (ranks[r].device.empty())
      return without(fmt::format("it is not known which device rank {} uses", r));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (std::size_t s = 0; s < r; ++s)
      if (ranks[s].device == ranks[r].device)
        return without(
            fmt::format("ranks {} and {} share {}, which NCCL refuses", s, r, ranks[r].device));
  return {Way::Nccl, ""};
}

Route route_between_ranks(const World& world, const DeviceMemory& memory) {
  const Way by_mpi = memory.is_staged ? Way::Staged : Way::Mpi;
  if (!memory.queues) return {by_mpi, ""};
  return choose_route(facts_of_all(world, *memory.queues), by_mpi);
}

std::vector<std::string> describe_routes(const World& world, const DeviceMemory& memory,
                                         bool on_cores) {
  std::vector<std::string> lines = {"within a rank: a copy"};
  if (world.size() > 1)
    lines.push_back("between ranks: " + describe(route_between_ranks(world, memory), on_cores));
  return lines;
}

}  // namespace millrace::comm
