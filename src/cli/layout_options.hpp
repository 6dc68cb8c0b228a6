// SPDX-License-Identifier: Apache-2.0
//
// What the options say about stages and schedules. What they leave open is decided in
// partition/layout.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/option_reader.hpp"
#include "cli/resolve_parts.hpp"
#include "models/graph.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// The plan in the file that --plan names. Errors: Io; Config when it is for another network.
[[nodiscard]] std::optional<partition::Plan> plan_given(const Options& options,
                                                        const models::Graph& graph);

/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(Reader& read);

/// The compute actions of --pipeline-schedule-file if given. Errors: as pipeline::parse_schedule.
[[nodiscard]] std::optional<pipeline::Schedule> schedule_in_file(Reader& read);

/// The schedule that the options ask for, on the devices of `plan` or, without a plan, of the
/// schedule in the file, if given.
/// Errors: Usage when the options contradict each other or leave a device without a stage.
[[nodiscard]] pipeline::ScheduleRequest schedule_request(Reader& read,
                                                         const train::TrainConfig& config,
                                                         const partition::Plan* plan,
                                                         const pipeline::Schedule* listed);

/// The request from which plans for a configuration are made.
[[nodiscard]] partition::PlanRequest plan_request(const train::TrainConfig& config,
                                                  const pipeline::ScheduleRequest& schedule);

/// The cuts of a run: those given, or automatic ones for `auto` and for sharding without splits.
/// Errors: Usage, with a list of all cuts and their costs.
[[nodiscard]] std::vector<std::string> resolve_splits(Reader& read, const models::Graph& graph,
                                                      const train::TrainConfig& config,
                                                      const pipeline::ScheduleRequest& schedule,
                                                      Notices& notices);

/// The compute actions: those of `listed`, the schedule in the file, if given, otherwise generated.
/// Errors: Config when `listed` does not fit the run.
[[nodiscard]] pipeline::Schedule schedule_of(Reader& read, const models::Graph& graph,
                                             const train::TrainConfig& config,
                                             const pipeline::ScheduleRequest& request,
                                             const partition::Plan* plan,
                                             const pipeline::Schedule* listed, Notices& notices);

}  // namespace millrace::cli
