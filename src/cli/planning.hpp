// SPDX-License-Identifier: Apache-2.0
//
// What the commands that plan have in common.
#pragma once

#include <vector>

#include "cli/options.hpp"
#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// The options of a training without what needs data or takes time, and with automatic splits if it
/// has several stages and none are given.
[[nodiscard]] Options options_to_plan(Options options);

enum class CostModel { Analytic, Profile };
/// The --cost-model asked for.
[[nodiscard]] CostModel cost_model(const Options& options);
/// Costs by op, estimated or measured on this machine; measuring starts Kokkos, once a process.
[[nodiscard]] std::vector<partition::OpCost> costs_of(const models::Graph& graph,
                                                      const train::TrainConfig& config,
                                                      CostModel model);

/// A step of the schedule of the run, simulated with the costs of the plan; empty for a single
/// stage.
[[nodiscard]] pipeline::TimeLine simulated_step(const train::TrainConfig& config,
                                                const partition::Plan& plan);

}  // namespace millrace::cli
