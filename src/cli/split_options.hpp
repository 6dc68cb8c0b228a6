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

/// The request from which plans for a configuration are made.
[[nodiscard]] partition::PlanRequest plan_request(const train::TrainConfig& config,
                                                  const pipeline::ScheduleRequest& schedule);

/// Costs of the ops of a run, estimated from their arithmetic.
[[nodiscard]] std::vector<partition::OpCost> estimated_costs(const models::Graph& graph,
                                                             const train::TrainConfig& config);

/// The best plan with cuts between layers, or one with cuts inside blocks if it is clearly faster.
/// Errors: as partition::best_plans.
[[nodiscard]] partition::Plan automatic_plan(const models::Graph& graph,
                                             std::span<const partition::OpCost> costs,
                                             const partition::PlanRequest& request,
                                             std::int64_t memory_limit);

/// The plan in the file that --plan names. Errors: Io; Config when it is for another network.
[[nodiscard]] std::optional<partition::Plan> plan_given(const Options& options,
                                                        const models::Graph& graph);

/// "512MiB", "8GiB", "1e9" as bytes; 0 when the option is not given. Errors: Usage.
[[nodiscard]] std::int64_t device_memory(Reader& read);

/// The cuts of a run: those given, or automatic ones for `auto` and for sharding without splits.
/// Errors: Usage, with a list of all cuts and their costs.
[[nodiscard]] std::vector<std::string> resolve_splits(Reader& read, const models::Graph& graph,
                                                      const train::TrainConfig& config,
                                                      const pipeline::ScheduleRequest& schedule,
                                                      std::vector<std::string>& notices);

}  // namespace millrace::cli
