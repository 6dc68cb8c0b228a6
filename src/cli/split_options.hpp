// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/option_reader.hpp"
#include "models/graph.hpp"
#include "partition/plan.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// For which run a configuration's plans are made.
[[nodiscard]] partition::PlanRequest plan_request(const train::TrainConfig& config,
                                                  const pipeline::ScheduleRequest& schedule);

/// What the ops of a run cost by arithmetic alone.
[[nodiscard]] std::vector<partition::OpCost> estimated_costs(const models::Graph& graph,
                                                             const train::TrainConfig& config);

/// The best plan between layers, or one that cuts inside blocks where that is clearly faster.
/// Errors: as partition::best_plans.
[[nodiscard]] partition::Plan automatic_plan(const models::Graph& graph,
                                             std::span<const partition::OpCost> costs,
                                             const partition::PlanRequest& request,
                                             std::int64_t memory_limit);

/// The plan in the file that the options name. Errors: Io, Config, when it is for another network.
[[nodiscard]] std::optional<partition::Plan> plan_given(const Options& options,
                                                        const models::Graph& graph);

/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(Reader& read);

/// The cuts of a run, found where the options ask for that or leave it open.
/// Errors: Usage, with all cuts that there are and what each costs.
[[nodiscard]] std::vector<std::string> resolve_splits(Reader& read, const models::Graph& graph,
                                                      const train::TrainConfig& config,
                                                      const pipeline::ScheduleRequest& schedule,
                                                      std::vector<std::string>& notices);

}  // namespace millrace::cli
