// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.hpp"

#include <utility>

#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMostBytes = 4 << 20;  // of a schedule: some 700,000 actions

/// The plan in the file that was given. Errors: Io; Config when it is for another network.
std::optional<partition::Plan> plan_given(const run::Run& config, const models::Graph& graph) {
  const std::string& file = config.layout.plan;
  if (file.empty()) return std::nullopt;
  partition::Plan plan = partition::parse_plan(io::read_text(file, kMostBytes), file);
  if (plan.model != graph.name)
    fail(ErrorKind::Config, "{}: this is a plan for {}, but the run trains {}", file, plan.model,
         graph.name);
  return plan;
}

/// The compute actions in the file of a schedule, if one was given.
std::optional<pipeline::Schedule> schedule_in_file(const run::Run& config) {
  const std::string& file = config.layout.schedule_file;
  if (file.empty()) return std::nullopt;
  return without_communication(pipeline::parse_schedule(io::read_text(file, kMostBytes), file));
}

}  // namespace

partition::LayoutFacts layout_facts(const models::Graph& graph, const run::Run& run,
                                    const MachineFacts& machine) {
  return {.machine = machine, .plan = plan_given(run, graph), .actions = schedule_in_file(run)};
}

Resolution resolve(const Patch& given, const DatasetFacts& data, const MachineFacts& machine) {
  run::Completed completed = run::complete(given, data, machine);
  const models::Graph graph = train::network_of(completed.run);
  partition::Choice choice = partition::choose(
      graph, completed.run, layout_facts(graph, completed.run, machine), train::sizer_of(graph));
  Resolution result{.config = std::move(choice.run),
                    .layout = std::move(choice.layout),
                    .notices = std::move(completed.notices)};
  std::move(choice.notices.begin(), choice.notices.end(), std::back_inserter(result.notices));
  run::complete_layout(given, machine, result.config, result.notices);
  return result;
}

}  // namespace millrace::cli
