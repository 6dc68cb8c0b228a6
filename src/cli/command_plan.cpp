// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>

#include "cli/commands.hpp"
#include "cli/planning.hpp"
#include "cli/prepare.hpp"
#include "cli/resolve_parts.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "partition/cost.hpp"
#include "partition/cuts.hpp"
#include "partition/layout.hpp"
#include "partition/plan.hpp"
#include "pipeline/messages.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "pipeline/schedule/render.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

/// The simulated step as a chart, if there are few enough micro-batches to read it.
std::string timeline_text(const train::TrainConfig& config, const partition::Plan& plan) {
  constexpr std::int32_t kReadable = 16;
  constexpr std::int32_t kColumns = 100;
  if (plan.stages() < 2 || plan.micro_batches > kReadable) return {};
  return staircase(simulated_step(config, plan), kColumns);
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

}  // namespace

int command_plan(const Invocation& invocation) {
  const Options options = options_to_plan(invocation.options);
  const DatasetFacts facts = published_facts(options);
  const Resolution resolution = resolve(options, facts, this_machine());
  print_lines(stderr, invocation.notices);
  print_lines(stderr, resolution.notices);
  print_lines(stderr, train::describe_computing(resolution.config));
  const train::TrainConfig& config = resolution.config;
  const models::Graph graph = train::network_of(config);
  const CostModel model = cost_model(options);
  const std::vector<partition::OpCost> costs = costs_of(graph, config, model);

  const std::optional<partition::Plan>& given = resolution.layout.plan;
  partition::PlanRequest request = plan_request(config, resolution.layout.request);
  request.cost_model = model == CostModel::Profile ? "profile" : "analytic";
  if (pipeline::schedule_rule(request.schedule.name).placement == pipeline::StagePlacement::Free)
    request.schedule.device_of = config.pipeline.schedule.device_of;
  const bool automatic = options.text("pipeline-splits") == "auto";
  Reader read(options);
  partition::Plan plan = automatic
                             ? partition::automatic_plan(graph, costs, request, device_memory(read))
                             : partition::make_plan(graph, costs, config.pipeline.ranges, request);

  const std::string schedule =
      options.text("pipeline-schedule").value_or(given ? given->schedule : std::string());
  if (to_lower(schedule) == "auto" && plan.stages() > 1) measure_automatic_schedule(graph, plan);

  const std::string format = options.text("format").value_or("text");
  if (format == "html")
    fail(ErrorKind::Usage, "--format html has no effect here: millrace report writes pages");
  if (format == "json") {
    fmt::print("{}", to_json(plan));
  } else if (format == "svg") {
    fmt::print("{}", to_svg(plan, simulated_step(config, plan)));
  } else if (format == "csv") {
    fmt::print("{}", to_csv(config.pipeline.schedule));
  } else {
    fmt::print("{}\n{}\n{}", to_text(plan, graph), timeline_text(config, plan),
               partition::cut_table(graph, costs, config.batch_size, config.precision.activations));
  }
  return 0;
}

}  // namespace millrace::cli
