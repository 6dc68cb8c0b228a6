// SPDX-License-Identifier: Apache-2.0
//
// What is said about the layout of a run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cli/resolve_parts.hpp"
#include "core/text.hpp"
#include "partition/layout.hpp"

namespace millrace::cli {

std::string splits_notice(std::span<const std::string> splits) {
  return fmt::format("{}{}", kAutomaticSplits, join(splits, " "));
}

std::string schedule_notice(std::string_view schedule, std::span<const std::string> splits) {
  const bool listed = schedule == partition::kAutomatic;
  return fmt::format("{}{}, with splits {}", kAutomaticSchedule,
                     listed ? "actions ordered for these stages" : schedule, join(splits, " "));
}

namespace {

std::string cores_of(const MachineFacts& machine) {
  return machine.cores == 1 ? "only core" : fmt::format("{} cores", machine.cores);
}

}  // namespace

void note_turns(const MachineFacts& machine, const run::Run& config, int local, Notices& notices) {
  if (local > machine.cores)
    notices.push_back(fmt::format("{} ranks share the {} of this machine and take turns", local,
                                  cores_of(machine)));
  else if (const std::int64_t threads = std::int64_t{local} * config.threads;
           threads > machine.cores && !machine.has_gpu)
    notices.push_back(
        fmt::format("{} threads share the {} of this machine and take turns, which is much slower: "
                    "`threads-per-device` {} gives each thread a core",
                    threads, cores_of(machine), std::max(1, machine.cores / local)));
}

void note_sharding_filters(const run::Run& config, Notices& notices) {
  const run::LayoutRequest& asked = config.layout;
  if (config.pipeline.ranges.size() < 2 || asked.cut_by_memory) return;
  for (const auto& [name, filter] : {std::pair{"sharding-include-filter", &asked.include},
                                     std::pair{"sharding-exclude-filter", &asked.exclude}})
    if (!filter->empty())
      notices.push_back(fmt::format(
          "`{}` has no effect here: it is for automatic sharding with one micro-batch; a pipeline "
          "is cut at `pipeline-splits` or by `plan`",
          name));
}

}  // namespace millrace::cli
