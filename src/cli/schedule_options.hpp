// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cli/option_reader.hpp"
#include "cli/resolve_parts.hpp"
#include "models/graph.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// The compute actions of --pipeline-schedule-file if given. Errors: as pipeline::parse_schedule.
[[nodiscard]] std::optional<pipeline::Schedule> schedule_in_file(Reader& read);

/// The schedule that the options ask for, on the devices of `plan` or, without a plan, of the
/// schedule in the file, if given.
/// Errors: Usage when the options contradict each other or leave a device without a stage.
[[nodiscard]] pipeline::ScheduleRequest schedule_request(Reader& read,
                                                         const train::TrainConfig& config,
                                                         const partition::Plan* plan,
                                                         const pipeline::Schedule* listed);

/// The list of actions made for the costs of these very stages.
[[nodiscard]] pipeline::Schedule automatic_schedule(const models::Graph& graph,
                                                    std::span<const pipeline::OpRange> ranges,
                                                    std::vector<pipeline::StageCost> costs,
                                                    const pipeline::ScheduleRequest& request);

/// The compute actions: those of `listed`, the schedule in the file, if given, otherwise generated.
/// Errors: Config when `listed` does not fit the run.
[[nodiscard]] pipeline::Schedule schedule_of(Reader& read, const models::Graph& graph,
                                             const train::TrainConfig& config,
                                             const pipeline::ScheduleRequest& request,
                                             std::span<const pipeline::OpRange> ranges,
                                             const partition::Plan* plan,
                                             const pipeline::Schedule* listed, Notices& notices);

}  // namespace millrace::cli
