// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/machine_file.hpp"
#include "cli/open_run.hpp"
#include "cli/planning.hpp"
#include "core/error.hpp"
#include "core/machine_limits.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "partition/cost.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "partition/plan.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "pipeline/schedule/render.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"
#include "train/stage_times.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

/// The simulated step as a chart, if there are few enough micro-batches to read it.
std::string timeline_text(const partition::Plan& plan, const pipeline::TimeLine& step) {
  constexpr std::int32_t kReadable = 16;
  constexpr std::int32_t kColumns = 100;
  if (plan.stages() < 2 || plan.micro_batches > kReadable) return {};
  return staircase(step, kColumns);
}

/// Sets the device and the link that machine files describe. Errors: Config for a file without.
void use_machine_files(const Patch& options, partition::PlanRequest& request) {
  if (const std::optional<std::string> file = options.text("device")) {
    if (cost_model(options) == CostModel::Profile)
      fail(ErrorKind::Usage,
           "--cost-model profile measures this machine, and --device {} describes another: leave "
           "one of them out",
           *file);
    const partition::Machine machine = read_machine(*file);
    const DType type = request.program.type;
    const auto found = machine.devices.find(type);
    if (found == machine.devices.end())
      fail(ErrorKind::Config,
           "{}: no section [{}], the type of this training; measure the machine "
           "with millrace bench --machine-file, or choose another --precision",
           *file, name_of(type));
    request.device = found->second;
    request.cost_model = "analytic, " + *file;
  }
  if (const std::optional<std::string> file = options.text("link")) {
    const partition::Machine machine = read_machine(*file);
    if (!machine.link)
      fail(ErrorKind::Config,
           "{}: no section [link]; millrace bench --machine-file measures it with "
           "at least 2 ranks",
           *file);
    request.link = *machine.link;
  }
}

/// A plan with the compute actions that it is for.
struct Planned {
  partition::Plan plan;
  pipeline::Schedule compute;
};

/// The plan of a run's cuts and schedule.
Planned plan_of(const models::Graph& graph, const run::Run& config,
                const partition::PlanRequest& request, std::span<const partition::OpCost> costs) {
  pipeline::Schedule compute = without_communication(config.pipeline.schedule);
  partition::Plan plan =
      partition::make_plan(graph, costs, config.pipeline.ranges, request, compute);
  if (plan.stages() > 1 && to_lower(plan.schedule) == partition::kAutomatic)
    plan.schedule = partition::kAutomatic;
  return {std::move(plan), std::move(compute)};
}

/// Whether automatic cuts, and an automatic schedule, which were found for estimated costs of this
/// machine, are to be found again for others.
bool finds_again(const Patch& options, const run::Run& config,
                 const partition::PlanRequest& request) {
  const run::LayoutRequest& asked = config.asked_layout;
  const bool other_costs = request.cost_model != "analytic" || options.text("link");
  return other_costs && opens_cuts(asked) && !config.pipeline.is_joint() &&
         asked.schedule_file.empty() && request.schedule.devices > 1;
}

/// The layout of the run, found again for the device, link and costs of `request`.
partition::Choice found_again(const models::Graph& graph, const Resolution& resolution,
                              const partition::PlanRequest& request,
                              std::vector<partition::OpCost> costs) {
  run::Run asked = resolution.config;
  asked.layout = asked.asked_layout;
  partition::LayoutFacts facts = layout_facts(graph, asked, this_machine());
  facts.rates = [&](partition::PlanRequest& plan) {
    plan.device = request.device;
    plan.link = request.link;
    plan.processors = request.processors;
    plan.devices_per_process = request.devices_per_process;
    plan.cost_model = request.cost_model;
    plan.costs = costs;
  };
  partition::Sizer sizer = training::sizer_of(graph);
  const std::int64_t rest = asked.device_memory - resolution.layout.room.bytes;
  sizer.rest = [rest](const run::Run&) { return rest; };
  return partition::choose(graph, std::move(asked), facts, sizer);
}

/// The most resident memory that a process of the run begins with. It varies a little from time to
/// time, so that all that is tried within --device-memory takes one value. Collective.
std::int64_t base_of_processes(const run::Run& config, const training::TrainInputs& inputs,
                               const comm::World& world) {
  std::int64_t most = 0;
  for (const partition::ProcessMemory& process : forecast_processes(config, inputs, world))
    most = std::max(most, process.base);
  return world.maximum(most);
}

using ForecastProcesses = std::function<std::vector<partition::ProcessMemory>(const run::Run&)>;

/// The memory of the run's processes, as they will find it themselves. Errors: Config if a device
/// needs more than --device-memory, with what fits.
void add_memory(partition::Plan& plan, const models::Graph& graph, const run::Run& config,
                const ForecastProcesses& forecast) {
  training::require_device_memory(
      config, [&](const run::Run& other) { return training::device_use(forecast(other)); });
  plan.processes = forecast(config);
  plan.memory = training::sizes_of_stages(graph, config);
  if (std::ssize(plan.device_of) != config.pipeline.ranks.devices) return;
  // Every device has one stage, whose validation the session has sized as well.
  for (const partition::ProcessMemory& process : plan.processes)
    for (const partition::DeviceMemory& device : process.devices)
      for (std::size_t s = 0; s < plan.stages(); ++s)
        if (device.replica == 0 && plan.device_of[s] == device.device)
          plan.memory[s] = device.state + device.activations + device.kernels;
}

/// Whether the ranks of the layout are to be started here, to measure their stages while all work.
bool measures_together(const Patch& options, const run::Run& config, CostModel model) {
  constexpr int kMostPerCore = 4;
  const int ranks = config.pipeline.ranks.ranks;
  return model == CostModel::Profile && ranks > 1 && !options.flag("no-launch") &&
         device::computes_on_cores() && ranks <= kMostPerCore * usable_cores();
}

/// Rank 0's plan on all ranks: the cuts and the actions.
void share_plan(const comm::World& world, Planned& planned) {
  const bool first = world.rank() == 0;
  const std::string plan = world.broadcast(first ? to_json(planned.plan) : "");
  const std::string rows = world.broadcast(first ? to_csv(planned.compute) : "");
  if (first) return;
  planned.plan = partition::parse_plan(plan, "the plan of rank 0");
  planned.compute = pipeline::parse_schedule(rows, "the plan of rank 0");
  (void)pipeline::number_in_order(planned.compute);
}

/// Replaces the sums of the ops of each stage, which are only approximations, by the times of whole
/// stages. Collective.
void measure_stages(Planned& planned, const models::Graph& graph,
                    const partition::PlanRequest& request, const run::Run& config,
                    const std::shared_ptr<const io::Dataset>& dataset, const comm::World& world,
                    int cores) {
  const int at_once = std::max(1, cores / config.threads);
  const std::vector<pipeline::StageCost> seconds =
      training::measured_costs(config, dataset, world, at_once);
  if (world.rank() != 0) return;
  auto& [plan, compute] = planned;
  set_seconds(plan, graph, request, compute, seconds);
  if (plan.schedule != partition::kAutomatic) return;
  const auto& ranges = config.pipeline.ranges;  // as train --plan lists the actions
  compute = partition::automatic_schedule(
      graph, ranges, step_costs(graph, ranges, plan.costs, request), request.schedule);
  set_seconds(plan, graph, request, compute, std::vector(plan.costs));
}

void print_plan(const Planned& planned, const models::Graph& graph, const Patch& options,
                const partition::PlanRequest& request, std::span<const partition::OpCost> costs,
                const run::Run& config) {
  const auto& [plan, compute] = planned;
  const std::string format = options.text("format").value_or("text");
  const std::string unknown =
      unknown_to_plan(options, config.pipeline.ranks.devices * request.replicas);
  const std::optional<partition::GoodputCurve> failures = plan_failures(options, plan, request);
  const auto step = [&, &plan = plan] {
    return simulated_step(graph, config.pipeline, plan, request);
  };
  if (format == "json") {
    fmt::print("{}", with_notes(with_failures(to_json(plan), failures), unknown));
  } else if (format == "svg") {
    fmt::print("{}", failures ? to_svg(*failures) : to_svg(plan, step()));
  } else if (format == "csv") {
    fmt::print("{}", to_csv(config.pipeline.schedule));
  } else {
    fmt::print("{}\n{}{}\n{}\n{}", to_text(plan, graph), to_text(plan.processes), unknown,
               timeline_text(plan, step()),
               partition::cut_table(graph, costs, config.batch_size, config.precision.activations));
    if (failures) fmt::print("\n{}", respelled(to_text(*failures), Patch()));
  }
}

/// The request from which the plan of these options is made, for ranks that share these cores, or
/// each of which has its own.
partition::PlanRequest request_of(const Patch& options, const Resolution& resolution,
                                  std::optional<int> shared_cores) {
  partition::PlanRequest request = request_to_plan(resolution, cost_model(options), shared_cores);
  use_machine_files(options, request);
  return request;
}

/// The cores of this machine, if the plan is for ranks that share them. Otherwise says so where
/// they would have to.
std::optional<int> cores_shared(Resolution& resolution, const Invocation& invocation, int cores) {
  const int ranks = resolution.config.pipeline.ranks.ranks;
  if (cost_model(invocation.options) == CostModel::Profile || invocation.options.integer("ranks"))
    return cores;
  if (ranks > cores)
    resolution.notices.push_back(
        fmt::format("this plan is for ranks with cores of their own; --ranks {} plans for those of "
                    "this machine",
                    ranks));
  return std::nullopt;
}

/// Prints the notices of the plan's options, without those of cuts and schedules that are `found
/// again`; rank 0 does.
void print_notices_of(const Resolution& resolution, const Invocation& invocation, bool found_again,
                      const comm::World& world) {
  if (world.rank() != 0) return;
  std::vector<std::string> notices = invocation.notices;
  for (const auto& more : {resolution.notices, resolution.layout.notices})
    notices.insert(notices.end(), more.begin(), more.end());
  if (found_again)
    std::erase_if(notices, [](const std::string& notice) {
      return notice.starts_with(partition::kAutomaticSplits) ||
             notice.starts_with(partition::kAutomaticSchedule);
    });
  if (!is_quiet(invocation.options))
    for (const std::string& line : training::describe_computing(resolution.config))
      notices.push_back(line);
  print_notices(invocation, notices);
}

/// The part of a plan that needs the device.
int make_and_print(const Invocation& invocation, const Patch& options, const Datasets& sets,
                   Resolution resolution, const models::Graph& graph, const comm::World& world) {
  const training::TrainInputs inputs{
      .train = sets.train, .validation = sets.validation, .command_line = {}, .notices = {}};
  const CostModel model = cost_model(options);
  const MachineFacts machine = this_machine();
  const int cores = this_machine(world).cores;  // before this rank keeps to its own
  if (world.size() > 1) pin_rank(world, resolution.config);
  const device::Environment environment(resolution.config.threads);
  std::optional<std::int64_t> base;
  if (resolution.config.device_memory > 0)
    base = base_of_processes(resolution.config, inputs, world);
  const ForecastProcesses forecast = [&](const run::Run& tried) {
    return forecast_processes(saving(tried), inputs, world, base);
  };
  resolution = fit_layout(machine, std::move(resolution), [&](const run::Run& tried) {
    return training::device_use(forecast(tried));
  });
  run::Run config = saving(resolution.config);
  const std::optional<int> shared_cores = cores_shared(resolution, invocation, cores);
  partition::PlanRequest request = request_of(options, resolution, shared_cores);
  const bool again = finds_again(options, resolution.config, request);
  print_notices_of(resolution, invocation, again, world);
  if (model == CostModel::Profile && world.rank() == 0) warn_of_load();
  request.sizer = training::search_sizer(graph, config);
  std::vector<partition::OpCost> costs;
  Planned planned;
  if (world.rank() == 0) {
    costs = costs_of(graph, config, request, model);
    if (again) {
      const partition::Choice choice = found_again(graph, resolution, request, costs);
      print_notices(invocation, {choice.layout.notices.front()});
      request.schedule = choice.layout.request;
      request.segments.clear();  // those of other cuts
      planned = plan_of(graph, choice.run, request, costs);
    } else {
      planned = plan_of(graph, config, request, costs);
    }
  }
  if (world.size() > 1) share_plan(world, planned);
  if (planned.plan.splits != config.splits) config.chosen_segments.clear();
  config.splits = planned.plan.splits;
  config.pipeline.ranges = partition::stages_of(graph, planned.plan.splits);
  const auto links = pipeline::links(graph, config.pipeline.ranges);
  config.pipeline.schedule = with_communication(planned.compute, links);
  if (model == CostModel::Profile && config.pipeline.ranks.devices * request.replicas > 1)
    measure_stages(planned, graph, request, config, sets.train, world, cores);
  if (world.rank() != 0) return 0;
  world.fail_together();  // the others have done their part
  config.pipeline.schedule = with_communication(planned.compute, links);
  if (config.pipeline.is_joint()) set_step(planned.plan, graph, request, config.pipeline);
  add_memory(planned.plan, graph, config, forecast);
  print_plan(planned, graph, invocation.options, request, costs, config);
  return 0;
}

int plan(const Invocation& invocation, const comm::World& world) {
  Patch options = options_to_plan(without_layout(invocation.options));
  if (const std::string found = find_dataset(options); !found.empty())
    impose(options, "dataset", found);
  if (options.text("format") == "html")
    fail(ErrorKind::Usage, "--format html has no effect here: millrace report writes pages");
  require_failures(invocation.options);
  const Datasets sets = open_datasets(data_request(options), reports_on(options));
  const Resolution resolution = resolve(options, sets.facts, this_machine());
  const models::Graph graph = training::network_of(resolution.config);
  partition::PlanRequest request = request_of(options, resolution, std::nullopt);
  const bool searches = options.integer("devices").has_value();
  if (world.size() == 1 && !searches &&
      measures_together(options, resolution.config, cost_model(options)))
    return launch_ranks(resolution.config, invocation);
  if (world.size() > 1 && world.size() != resolution.config.pipeline.ranks.ranks)
    fail(ErrorKind::Usage,
         "{} processes were started, but the layout has {} ranks: start one process, or as many",
         world.size(), resolution.config.pipeline.ranks.ranks);
  if (!searches) return make_and_print(invocation, options, sets, resolution, graph, world);
  print_notices_of(resolution, invocation, false, world);
  if (world.rank() != 0) return 0;
  plan_devices(invocation.options, options, sets, resolution, graph, std::move(request), world);
  return 0;
}

}  // namespace

int command_plan(const Invocation& invocation) {
  const comm::World world;
  return run_on_all_ranks(world, invocation, [&] { return plan(invocation, world); });
}

}  // namespace millrace::cli
