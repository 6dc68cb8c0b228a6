// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/commands.hpp"
#include "cli/datasets.hpp"
#include "cli/prepare.hpp"
#include "cli/resolve_parts.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "partition/cost.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "partition/plan.hpp"
#include "pipeline/messages.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "pipeline/schedule/render.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "train/memory.hpp"
#include "train/profile.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

/// The given options, with automatic splits if there are none yet, and with a single rank.
Options planned(const Invocation& invocation) {
  Options options = invocation.options;
  drop_length(options);
  // Validation shares the devices' memory.
  for (const char* name : {"no-validation", "valid-batch-size"})
    if (const Setting* given = invocation.options.find(name))
      options.set(*find_option(name), *given);
  impose(options, "iterations", std::int64_t{1});
  const std::optional<std::string> directory = options.text("data-dir");
  if (directory && !std::filesystem::exists(*directory)) options.erase("data-dir");
  if (image_source(options) == train::ImageSource::Files && !options.text("data-dir"))
    impose(options, "generated-data", true);
  if (!options.text("pipeline-splits") && !options.text("plan"))
    impose(options, "pipeline-splits", std::string("auto"));
  const bool one_stage = options.integer("shards").value_or(1) == 1 &&
                         !options.text("device-mapping") && !options.text("plan") &&
                         !options.integer("chunks");
  if (one_stage) options.erase("pipeline-splits");
  return options;
}

std::vector<partition::OpCost> costs_of(const models::Graph& graph,
                                        const train::TrainConfig& config, bool profile) {
  if (!profile) return partition::estimated_costs(graph, train::training_program(config));
  return partition::recomputing(graph, train::profiled_costs(config), config.recompute_layers);
}

/// The simulated step as a chart, if there are few enough micro-batches to read it.
std::string timeline_text(const train::TrainConfig& config, const partition::Plan& plan) {
  constexpr std::int32_t kReadable = 16;
  constexpr std::int32_t kColumns = 100;
  if (plan.stages() < 2 || plan.micro_batches > kReadable) return {};
  const models::Graph graph = train::network_of(config);
  const auto ranges = partition::stages_of(graph, plan.splits);
  const auto links = pipeline::links(graph, ranges);
  pipeline::Costs costs;
  costs.stages = plan.costs;
  return staircase(simulate(config.pipeline.schedule, links, costs), kColumns);
}

/// Replaces the plan's schedule by one generated for its own costs.
void measure_automatic_schedule(const models::Graph& graph, partition::Plan& plan) {
  const auto ranges = partition::stages_of(graph, plan.splits);
  const auto links = pipeline::links(graph, ranges);
  const pipeline::ScheduleRequest request{.micro_batches = plan.micro_batches,
                                          .device_of = plan.device_of};
  pipeline::Costs costs;
  costs.stages = plan.costs;
  const pipeline::TimeLine line = simulate(
      with_communication(partition::automatic_schedule(graph, ranges, plan.costs, request), links),
      links, costs);
  plan.schedule = "auto";
  plan.seconds = line.makespan;
  plan.bubble = line.bubble();
}

/// The memory of the run's processes, as they will find it themselves. Errors: Config if a device
/// needs more than --device-memory, with what fits.
void add_memory(partition::Plan& plan, const train::TrainConfig& config,
                const train::TrainInputs& inputs) {
  const comm::World world;
  require_device_memory(config, [&](const train::TrainConfig& other) {
    std::int64_t most = 0;
    for (const partition::ProcessMemory& process : forecast_processes(other, inputs, world))
      most = std::max(most, train::device_need(process));
    return most;
  });
  plan.processes = forecast_processes(config, inputs, world);
  if (std::ssize(plan.device_of) != config.pipeline.ranks.devices) return;
  // Every device has one stage.
  for (const partition::ProcessMemory& process : plan.processes)
    for (const partition::DeviceMemory& device : process.devices)
      for (std::size_t s = 0; s < plan.stages(); ++s)
        if (device.replica == 0 && plan.device_of[s] == device.device)
          plan.memory[s] = device.state + device.activations + device.kernels;
}

}  // namespace

int command_plan(const Invocation& invocation) {
  const Options options = planned(invocation);
  const DataRequest data = data_request(options);
  const Datasets sets = open_datasets(data);
  const Resolution resolution = resolve(options, sets.facts, this_machine());
  print_lines(stderr, invocation.notices);
  print_lines(stderr, resolution.notices);
  print_lines(stderr, train::describe_computing(resolution.config));
  train::TrainConfig config = resolution.config;
  if (resolution.place.logs) config.run_directory = "run";  // checkpoints need memory, too
  const models::Graph graph = train::network_of(config);
  const device::Environment environment(config.threads);
  const bool profile = options.value("cost-model") == Value(std::string("profile"));
  const std::vector<partition::OpCost> costs = costs_of(graph, config, profile);

  const std::optional<partition::Plan>& given = resolution.layout.plan;
  partition::PlanRequest request = plan_request(config, resolution.layout.request);
  request.sizer = train::stage_sizer(graph, config);
  request.cost_model = profile ? "profile" : "analytic";
  if (pipeline::schedule_rule(request.schedule.name).placement == pipeline::StagePlacement::Free)
    request.schedule.device_of = config.pipeline.schedule.device_of;
  // Automatic splits were chosen for estimated costs.
  if (profile && options.text("pipeline-splits") == "auto")
    config = with_cuts(
        config, graph,
        partition::stages_of(
            graph, partition::automatic_plan(graph, costs, request, config.device_memory).splits));
  partition::Plan plan = partition::make_plan(graph, costs, config.pipeline.ranges, request);

  const std::string schedule =
      options.text("pipeline-schedule").value_or(given ? given->schedule : std::string());
  if (to_lower(schedule) == "auto" && plan.stages() > 1) measure_automatic_schedule(graph, plan);

  add_memory(
      plan, config,
      {.train = sets.train, .validation = sets.validation, .command_line = {}, .notices = {}});

  const std::string format = options.value<std::string>("format");
  if (format == "json") {
    fmt::print("{}", to_json(plan));
  } else if (format == "svg") {
    fmt::print("{}", to_svg(plan));
  } else if (format == "csv") {
    fmt::print("{}", to_csv(config.pipeline.schedule));
  } else {
    fmt::print("{}\n{}\n{}\n{}", to_text(plan, graph), to_text(plan.processes),
               timeline_text(config, plan),
               partition::cut_table(graph, costs, config.batch_size, config.precision.activations));
  }
  return 0;
}

}  // namespace millrace::cli
