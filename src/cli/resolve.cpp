// SPDX-License-Identifier: Apache-2.0
#include "cli/resolve.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMostFileBytes = 4 << 20;  // of a schedule: some 700,000 actions

/// The plan in the file that was given. Errors: Io; Config when it is for another network.
std::optional<partition::Plan> plan_given(const run::Run& config, const models::Graph& graph) {
  const std::string& file = config.layout.plan;
  if (file.empty()) return std::nullopt;
  partition::Plan plan = partition::parse_plan(io::read_text(file, kMostFileBytes), file);
  if (plan.model != graph.name)
    fail(ErrorKind::Config, "{}: this is a plan for {}, but the run trains {}", file, plan.model,
         graph.name);
  return plan;
}

/// The compute actions in the file of a schedule, if one was given.
std::optional<pipeline::Schedule> schedule_in_file(const run::Run& config) {
  const std::string& file = config.layout.schedule_file;
  if (file.empty()) return std::nullopt;
  return without_communication(pipeline::parse_schedule(io::read_text(file, kMostFileBytes), file));
}

}  // namespace

partition::LayoutFacts layout_facts(const models::Graph& graph, const run::Run& run,
                                    const MachineFacts& machine) {
  return {.machine = machine, .plan = plan_given(run, graph), .actions = schedule_in_file(run)};
}

namespace {

using Ops = std::vector<models::OpId>;

/// "3,5,9"
std::string numbers_of(const Ops& ops) {
  std::vector<std::string> numbers;
  for (const models::OpId op : ops) numbers.push_back(std::to_string(op.value));
  return join(numbers, ",");
}

Ops ops_in(std::string_view numbers) {
  Ops ops;
  for (const std::string& number : split_list(numbers))
    ops.push_back({parse_number<std::int32_t>(number).value()});
  return ops;
}

Resolution resolve(const Patch& given, const DatasetFacts& data, const MachineFacts& machine,
                   std::optional<partition::Decided> decided) {
  run::Completed completed = run::complete(given, data, machine);
  const models::Graph graph = train::network_of(completed.run);
  partition::LayoutFacts facts = layout_facts(graph, completed.run, machine);
  facts.decided = std::move(decided);
  partition::Choice choice =
      partition::choose(graph, std::move(completed.run), facts, train::sizer_of(graph));
  Resolution result{.config = std::move(choice.run),
                    .layout = std::move(choice.layout),
                    .notices = std::move(completed.notices)};
  std::move(choice.notices.begin(), choice.notices.end(), std::back_inserter(result.notices));
  run::complete_layout(given, machine, result.config, result.notices);
  return result;
}

}  // namespace

Resolution resolve(const Patch& given, const DatasetFacts& data, const MachineFacts& machine) {
  return resolve(given, data, machine, std::nullopt);
}

// A line for each stage that repeats what was chosen for it and an empty one, the name of the
// schedule, its rows and an empty one, and config.toml.
std::string handed_over(const run::Run& decided) {
  std::string text;
  for (const pipeline::ChosenSegments& stage : decided.chosen_segments)
    text += fmt::format("{};{}\n", numbers_of(stage.segments), numbers_of(stage.kept));
  const pipeline::Schedule compute = without_communication(decided.pipeline.schedule);
  return fmt::format("{}\n{}\n{}\n{}", text, compute.name, to_csv(compute), to_toml(decided));
}

namespace {

/// The part of `text` up to an empty line, which is removed.
std::string_view next_part(std::string_view& text) {
  const bool is_empty = text.starts_with('\n');
  const std::size_t end = is_empty ? 0 : text.find("\n\n") + 1;
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end + 1);
  return part;
}

}  // namespace

Resolution taken_over(const std::string& text, const Patch& given, const DatasetFacts& data,
                      const MachineFacts& machine) {
  partition::Decided parts;
  std::string_view rest = text;
  for (const std::string& line : split_list(next_part(rest), '\n')) {
    const std::size_t middle = line.find(';');
    parts.segments.push_back(
        {.segments = ops_in(line.substr(0, middle)), .kept = ops_in(line.substr(middle + 1))});
  }
  const std::string_view schedule = next_part(rest);
  const std::size_t name = schedule.find('\n');
  parts.actions = pipeline::parse_schedule(schedule.substr(name + 1), schedule.substr(0, name));
  Patch decided = parse_config(std::string(rest), "the run of rank 0");
  decided.network = given.network;
  // The stages of a plan are recorded.
  for (const auto& [field_name, setting] : given.settings())
    if (const run::Field& field = *find_field(field_name); !field.get && field_name != "plan")
      decided.set(field, setting);
  Resolution taken = resolve(decided, data, machine, std::move(parts));
  taken.config.asked_layout = asked_run(given).layout;
  return taken;
}

}  // namespace millrace::cli
