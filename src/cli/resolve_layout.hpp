// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/option_reader.hpp"
#include "cli/resolve.hpp"
#include "partition/plan.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Decides stages, devices, schedule, ranks and threads of a configuration whose model, batch and
/// precision are decided. Errors: Config and Usage, with the nearest values that are possible; when
/// splits are missing, with all that there are and what each costs.
void resolve_layout(Reader& read, const MachineFacts& machine, train::TrainConfig& config,
                    std::vector<std::string>& notices);

/// For which run a configuration's plans are made.
[[nodiscard]] partition::PlanRequest plan_request(const train::TrainConfig& config,
                                                  const pipeline::ScheduleRequest& schedule);
/// The schedule that options ask for.
[[nodiscard]] pipeline::ScheduleRequest schedule_request(Reader& read,
                                                         const train::TrainConfig& config,
                                                         const partition::Plan* plan);
/// The best plan between layers, or one that cuts inside blocks where that is clearly faster.
/// Errors: as partition::best_plans.
[[nodiscard]] partition::Plan automatic_plan(const models::Graph& graph,
                                             std::span<const partition::OpCost> costs,
                                             const partition::PlanRequest& request,
                                             std::int64_t memory_limit);
/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(Reader& read);

/// A run that continues may be spread differently, as long as the total batch stays the same: the
/// number of micro-batches follows the number of replicas. `given` is what was asked for now.
/// Errors: Usage, naming both batches.
[[nodiscard]] Options relaid(const Options& given, const Options& recorded, Options merged);

}  // namespace millrace::cli
