// SPDX-License-Identifier: Apache-2.0
#include "cli/planning.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/open_run.hpp"
#include "cli/open_run_parts.hpp"
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

run::Run saving(run::Run config) {
  if (config.logging.keeps) config.run_directory = "run";
  return config;
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

Resolution fit_layout(const MachineFacts& machine, Resolution first,
                      const training::MeasureUse& measure) {
  if (first.config.device_memory == 0 || first.layout.notices.empty()) return first;
  const models::Graph graph = training::network_of(first.config);
  run::Run asked = first.config;
  asked.layout = asked.asked_layout;
  partition::Sizer sizer = training::sizer_of(graph);
  sizer.measure = measure;
  const partition::LayoutFacts facts = layout_facts(graph, asked, machine);
  partition::Choice choice = partition::choose(graph, std::move(asked), facts, sizer);
  first.config = std::move(choice.run);
  first.layout = std::move(choice.layout);
  return first;
}

namespace {

/// On rank 0: the layout that fits, for which all ranks measure. Returns the run as it was handed
/// over. Collective with follow_search() on the other ranks.
std::string lead_search(OpenedRun& run, const comm::World& world,
                        const training::MeasureUse& measure) {
  std::exception_ptr error;
  try {
    static_cast<Resolution&>(run) =
        fit_layout(run.machine, static_cast<const Resolution&>(run), [&](const run::Run& config) {
          (void)world.broadcast(handed_over(config));
          return measure(config);
        });
  } catch (const Error&) {
    error = std::current_exception();
  }
  (void)world.broadcast({});  // nothing more is to be measured
  training::FailTogether(world).lead([&] {
    if (error) std::rethrow_exception(error);
  });
  return world.broadcast(handed_over(run.config));
}

std::string follow_search(OpenedRun& run, const comm::World& world,
                          const training::MeasureUse& measure) {
  const auto taken = [&](const std::string& text) {
    run::Run config = taken_over(text, run.options, run.data.facts, run.machine).config;
    config.data = run.config.data;
    config.trace = run.config.trace;
    config.run_directory = run.config.run_directory;
    return config;
  };
  for (std::string text; !(text = world.broadcast({})).empty();) (void)measure(taken(text));
  training::FailTogether(world).lead([] {});
  std::string found = world.broadcast({});
  if (found != handed_over(run.config)) run.config = taken(found);
  return found;
}

}  // namespace

void fit_layout(OpenedRun& run, const comm::World& world) {
  if (run.config.device_memory == 0) return;
  const training::TrainInputs inputs{.train = run.data.train,
                                     .validation = run.data.validation,
                                     .command_line = {},
                                     .notices = {}};
  std::optional<std::int64_t> base;  // measured once: it varies a little from time to time
  const training::MeasureUse measure = [&](const run::Run& config) {
    if (must_launch(config, world)) {
      const auto processes = forecast_processes(config, inputs, world, base);
      for (const partition::ProcessMemory& process : processes)
        base = std::max(base.value_or(0), process.base);
      return training::device_use(processes);
    }
    device::release_unused();
    const training::Session session(config, training::Use::Training, world, world.rank());
    base = base.value_or(training::resident_bytes());
    return training::most_of(training::device_use(forecast_memory(session, config, inputs, *base)),
                             world);
  };
  const std::string before = handed_over(run.config);
  const std::string after =
      world.rank() == 0 ? lead_search(run, world, measure) : follow_search(run, world, measure);
  if (after == before) return;
  require_alike(world, run);
  if (run.is_new) training::FailTogether(world).lead([&] { record_options(run); });
}

}  // namespace millrace::cli
