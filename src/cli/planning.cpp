// SPDX-License-Identifier: Apache-2.0
#include "cli/planning.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/open_run.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "train/agreement.hpp"
#include "train/memory.hpp"
#include "train/session.hpp"
#include "train/setup.hpp"
#include "train/stage_times.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {

namespace {

/// Whether a run chooses its cuts without being asked: by memory, for a stage on each device.
bool cuts_by_memory(const Patch& options) {
  const std::optional<std::string> schedule = options.text("pipeline-schedule");
  const bool chunked =
      schedule && pipeline::placing_rule(*schedule).placement != pipeline::StagePlacement::Free;
  return run::divides_memory(run::micro_batches_of(options), run::names_pipeline(options)) &&
         !chunked && options.integer("chunks").value_or(1) == 1;
}

/// Whether a training with these options reads files, and none are here.
bool lacks_data(const Patch& options) {
  const std::optional<std::string> directory = options.text("data-dir");
  return image_source(options) == run::ImageSource::Files &&
         !(directory && std::filesystem::exists(*directory));
}

}  // namespace

std::string unknown_to_plan(const Patch& given, std::int64_t devices) {
  std::string text;
  if (devices > 1 && cost_model(given) == CostModel::Analytic)
    text +=
        "The speed is an upper bound: a plan knows no device that is slower than the others, no "
        "other traffic on the links, and no wait for images.\n";
  if (lacks_data(given))
    text +=
        "Planned without data: processes take more memory to read real images; --data-dir counts "
        "it.\n";
  return text;
}

std::string with_notes(const std::string& json, const std::string& unknown) {
  if (unknown.empty()) return json;
  const Json plans = Json::parse(json);
  const auto noted = [&](Json plan) {
    plan.set("notes", split_list(unknown, '\n'));
    return plan;
  };
  if (!plans.is_list()) return noted(plans).dump(2) + "\n";
  Json all = Json::list();
  for (const Json& plan : plans.items()) all.push_back(noted(plan));
  return all.dump() + "\n";
}

Patch options_to_plan(const Patch& given) {
  Patch options = given;
  drop_length(options);
  // Validation shares the devices' memory.
  for (const char* name : {"no-validation", "valid-batch-size"})
    if (const Setting* setting = given.find(name)) options.set(*find_field(name), *setting);
  // A trace takes memory for its updates, of which --profile-steps may name any.
  constexpr std::int64_t kMany = 1'000'000'000;
  const bool traces = options.text("trace") || options.text("gc-profile");
  impose(options, "iterations", traces ? kMany : std::int64_t{1});
  const std::optional<std::string> directory = options.text("data-dir");
  if (directory && !std::filesystem::exists(*directory)) options.erase("data-dir");
  if (lacks_data(options)) impose(options, "generated-data", true);
  if (!options.text("pipeline-splits") && !options.text("plan") && !cuts_by_memory(options))
    impose(options, "pipeline-splits", std::string("auto"));
  const bool one_stage = options.integer("shards").value_or(1) == 1 &&
                         !options.text("device-mapping") && !options.text("plan") &&
                         !options.integer("chunks");
  if (one_stage) options.erase("pipeline-splits");
  return options;
}

CostModel cost_model(const Patch& options) {
  return options.value<std::string>("cost-model") == "profile" ? CostModel::Profile
                                                               : CostModel::Analytic;
}

namespace {

/// How many devices of a pipeline so many cores compute at the same time, if its ranks share them;
/// otherwise 0.
double processors_of(const run::Run& config, int cores) {
  const pipeline::RankMap& map = config.pipeline.ranks;
  const int at_once = std::min(std::max(1, cores / config.threads), map.ranks);
  if (at_once >= map.devices * map.replicas) return 0.0;
  return static_cast<double>(at_once) / map.replicas;
}

}  // namespace

partition::PlanRequest request_to_plan(const Resolution& resolution, CostModel model,
                                       std::optional<int> shared_cores) {
  const run::Run& config = resolution.config;
  partition::PlanRequest request = partition::plan_request(config, resolution.layout.request);
  request.cost_model = model == CostModel::Profile ? "profile" : "analytic";
  if (shared_cores) {
    request.processors = processors_of(config, *shared_cores);
    request.devices_per_process = config.pipeline.ranks.most_devices();
  }
  if (pipeline::schedule_rule(request.schedule.name).placement == pipeline::StagePlacement::Free)
    request.schedule.device_of = config.pipeline.schedule.device_of;
  return request;
}

std::vector<partition::OpCost> costs_of(const models::Graph& graph, const run::Run& config,
                                        const partition::PlanRequest& request, CostModel model) {
  if (model == CostModel::Analytic) return partition::costs_of(graph, request);
  return partition::recomputing(graph, training::profiled_costs(config), config.recompute_layers);
}

pipeline::TimeLine simulated_step(const models::Graph& graph,
                                  const pipeline::PipelinePlan& pipeline,
                                  const partition::Plan& plan,
                                  const partition::PlanRequest& request) {
  if (plan.stages() < 2) return {};
  return simulate(pipeline, pipeline::links(graph, pipeline.ranges),
                  step_costs(graph, pipeline.ranges, plan.costs, request));
}

}  // namespace millrace::cli
