// SPDX-License-Identifier: Apache-2.0
//
// What the commands that plan have in common, and those that measure before they keep a layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/open_run.hpp"
#include "cli/options.hpp"
#include "comm/world.hpp"
#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "partition/goodput.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule/schedule.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "run/run.hpp"
#include "train/memory.hpp"

namespace millrace::cli {

/// The options of a training without what needs data or takes time, and with automatic splits if it
/// has several stages and none are given.
[[nodiscard]] Patch options_to_plan(const Patch& given);

/// What a plan for so many devices leaves out, a line for each, with the options that were `given`;
/// mostly "".
[[nodiscard]] std::string unknown_to_plan(const Patch& given, std::int64_t devices);
/// The JSON of a plan, or of a list of them, with such lines as the `notes` of each.
[[nodiscard]] std::string with_notes(const std::string& json, const std::string& unknown);

enum class CostModel { Analytic, Profile };
/// The --cost-model asked for.
[[nodiscard]] CostModel cost_model(const Patch& options);
/// The request from which plans of a run are made. `shared_cores`: the cores on which its ranks
/// take turns if there are too few; by default each rank has its own.
[[nodiscard]] partition::PlanRequest request_to_plan(const Resolution& resolution, CostModel model,
                                                     std::optional<int> shared_cores);

/// Costs by op, estimated or measured on this machine, which needs a device::Environment.
[[nodiscard]] std::vector<partition::OpCost> costs_of(const models::Graph& graph,
                                                      const run::Run& config,
                                                      const partition::PlanRequest& request,
                                                      CostModel model);

/// A step of a plan whose stages run as `pipeline` says, simulated; empty for a single stage.
[[nodiscard]] pipeline::TimeLine simulated_step(const models::Graph& graph,
                                                const pipeline::PipelinePlan& pipeline,
                                                const partition::Plan& plan,
                                                const partition::PlanRequest& request);

// ---- plan --devices N --total-batch B: a search for the best layout of N devices

/// Removes what the search finds from options that come from a file. Errors: Usage for options of
/// the command line whose value the search finds, and for one of the two options without the other.
[[nodiscard]] Patch without_layout(Patch options);

/// Prints the best layouts for what was `given`. `options`, `resolution` and `request` are the rest
/// of it, without a layout. Within --memory the layouts are those that a run fits into, measured on
/// this machine; for another machine only their stages count.
void plan_devices(const Patch& given, const Patch& options, const Datasets& sets,
                  const Resolution& resolution, const models::Graph& graph,
                  partition::PlanRequest request, const comm::World& world);

// ---- plan --failures-per-day X: what failures of hosts leave of the run

/// Errors: Usage for options of failures, or with them, that have no effect.
void require_failures(const Patch& options);

/// Goodput by the interval between checkpoints, if --failures-per-day asks for it. Errors: Config.
[[nodiscard]] std::optional<partition::GoodputCurve> plan_failures(
    const Patch& options, const partition::Plan& plan, const partition::PlanRequest& request);
/// The JSON of a plan with these figures, if there are any, as its `failures`.
[[nodiscard]] std::string with_failures(const std::string& json,
                                        const std::optional<partition::GoodputCurve>& failures);

}  // namespace millrace::cli
