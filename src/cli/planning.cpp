// SPDX-License-Identifier: Apache-2.0
#include "cli/planning.hpp"

#include <string>

#include "cli/prepare.hpp"
#include "cli/resolve.hpp"
#include "device/environment.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "pipeline/messages.hpp"
#include "train/profile.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

Options options_to_plan(Options options) {
  drop_length(options);
  options.erase("data-dir");
  impose(options, "iterations", std::int64_t{1});
  impose(options, "validation-mode", std::string("none"));
  if (image_source(options) == train::ImageSource::Files) impose(options, "synthetic-data", true);
  if (!options.text("pipeline-splits") && !options.text("plan"))
    impose(options, "pipeline-splits", std::string("auto"));
  const bool one_stage = options.integer("shards").value_or(1) == 1 &&
                         !options.text("device-mapping") && !options.text("plan") &&
                         !options.integer("chunks");
  if (one_stage) options.erase("pipeline-splits");
  return options;
}

CostModel cost_model(const Options& options) {
  return options.value<std::string>("cost-model") == "profile" ? CostModel::Profile
                                                               : CostModel::Analytic;
}

std::vector<partition::OpCost> costs_of(const models::Graph& graph,
                                        const train::TrainConfig& config, CostModel model) {
  if (model == CostModel::Analytic)
    return partition::estimated_costs(graph, train::training_program(config));
  const device::Environment environment(config.threads);
  return partition::recomputing(graph, train::profiled_costs(config), config.recompute_layers);
}

pipeline::TimeLine simulated_step(const train::TrainConfig& config, const partition::Plan& plan) {
  if (plan.stages() < 2) return {};
  const models::Graph graph = train::network_of(config);
  const auto links = pipeline::links(graph, partition::stages_of(graph, plan.splits));
  pipeline::Costs costs;
  costs.stages = plan.costs;
  return simulate(config.pipeline.schedule, links, costs);
}

}  // namespace millrace::cli
