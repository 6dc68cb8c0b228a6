// SPDX-License-Identifier: Apache-2.0
//
// The parts of resolve() that choose a layout, and what plans and fits share with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/resolve.hpp"
#include "models/graph.hpp"
#include "partition/layout.hpp"

namespace millrace::cli {

/// Sets stages, devices, schedule, ranks and threads of a configuration whose model, batch and
/// precision are already set. Errors: Config and Usage, with the possible values; for missing
/// splits with a list of all cuts and their costs.
[[nodiscard]] Layout resolve_layout(const MachineFacts& machine, run::Run& config,
                                    Notices& notices);
/// What a device must hold besides its stages: on cores, its part of the rest of a process.
[[nodiscard]] std::int64_t rest_beside_stages(const models::Graph& graph, const run::Run& config);
/// How the notices of what was chosen begin.
inline constexpr std::string_view kAutomaticSplits = "Automatic splits: ";
inline constexpr std::string_view kAutomaticSchedule = "Automatic schedule: ";
/// Tells which cuts, or which schedule, were chosen.
[[nodiscard]] std::string splits_notice(std::span<const std::string> splits);
[[nodiscard]] std::string schedule_notice(std::string_view schedule,
                                          std::span<const std::string> splits);
/// Tells if the `local` ranks of this machine, or their threads, share its cores.
void note_turns(const MachineFacts& machine, const run::Run& config, int local, Notices& notices);
/// The IPU trainer ignores these filters in a pipeline, and its command lines contain them there.
void note_sharding_filters(const run::Run& config, Notices& notices);
/// What --device-memory leaves to the stages of a device.
[[nodiscard]] partition::Room room_of_stages(const models::Graph& graph, const run::Run& config,
                                             const MachineFacts& machine);
/// The request of plan_request with the sizes that the run will find, for choices within
/// --device-memory. `graph` must outlive it.
[[nodiscard]] partition::PlanRequest sized_request(const models::Graph& graph,
                                                   const run::Run& config,
                                                   const pipeline::ScheduleRequest& schedule);
/// Chooses what each stage repeats so that its device keeps to `room`.
void choose_segments(const models::Graph& graph, const partition::Room& room, run::Run& config,
                     Notices& notices);
/// The request from which plans for a configuration are made.
[[nodiscard]] partition::PlanRequest plan_request(const run::Run& config,
                                                  const pipeline::ScheduleRequest& schedule);

}  // namespace millrace::cli
