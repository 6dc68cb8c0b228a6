// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/open_run.hpp"
#include "cli/planning.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "millrace_version.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "tools/report/page.hpp"
#include "train/memory.hpp"
#include "train/network_facts.hpp"
#include "train/setup.hpp"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// What a run trains, whatever its other options are.
constexpr std::array<std::string_view, 3> kIdentity = {"model", "model-size", "dataset"};

/// The newest checkpoint of a run, if it has one.
std::optional<io::CheckpointReader> newest_of(const fs::path& directory) {
  std::vector<std::string> complaints;
  if (io::list_checkpoints(directory).empty()) return std::nullopt;
  return io::open_newest(directory, complaints);
}

/// What that says of its data; without one, what is published.
DatasetFacts facts_of_run(const fs::path& directory, const Patch& options) {
  const std::optional<io::CheckpointReader> newest = newest_of(directory);
  if (!newest) return published_facts(options);
  const std::string label = (newest->path() / "manifest.json").string();
  return recorded_facts(options, training::parse_facts(newest->header().network, label));
}

/// The options of a run. Checkpoints that a program saved have no config.toml beside them.
std::optional<Patch> options_of(const fs::path& directory) {
  if (const fs::path config = directory / "config.toml"; fs::exists(config)) {
    Patch recorded = read_config_file(config);
    training::add_recorded_network(recorded, directory);
    return recorded;
  }
  const std::optional<io::CheckpointReader> newest = newest_of(directory);
  return newest ? std::optional(training::recorded_in(*newest)) : std::nullopt;
}

report::PlannedRun planned_run(const fs::path& directory, const Patch& recorded, CostModel model) {
  Patch planned_options = recorded;
  planned_options.erase("data-dir");  // only its sizes count
  const Patch options = options_to_plan(planned_options);
  const Resolution resolution = resolve(options, facts_of_run(directory, options), this_machine());
  const run::Run& config = resolution.config;
  report::PlannedRun planned;
  planned.replicas = config.pipeline.ranks.replicas;
  planned.graph = training::network_of(config);
  const partition::PlanRequest request = request_to_plan(resolution, model, this_machine().cores);
  std::optional<device::Environment> environment;
  if (model == CostModel::Profile) environment.emplace(config.threads);  // once a process
  planned.costs = costs_of(planned.graph, config, request, model);
  const pipeline::Schedule compute = without_communication(config.pipeline.schedule);
  planned.plan =
      partition::make_plan(planned.graph, planned.costs, config.pipeline.ranges, request, compute);
  planned.plan.memory = training::sizes_of_stages(planned.graph, config);
  if (config.pipeline.is_joint()) set_step(planned.plan, planned.graph, request, config.pipeline);
  planned.step = simulated_step(planned.graph, config.pipeline, planned.plan, request);
  if (planned.plan.stages() > 1) planned.plan.schedule = config.pipeline.schedule.name;
  return planned;
}

/// The configuration of a run of this network and data set without further options.
Patch usual_options(const fs::path& directory, const Patch& recorded) {
  Patch options;
  for (const std::string_view name : kIdentity)
    if (const Setting* const setting = recorded.find(name))
      options.set(*find_field(name), *setting);
  options.network = recorded.network;
  impose(options, "synthetic-data", true);
  // A network of its own reads images of its own size.
  const DatasetFacts facts =
      options.network ? facts_of_run(directory, options) : published_facts(options);
  const Resolution resolution = resolve(options, facts, this_machine());
  return parse_config(to_toml(resolution.config), "the defaults");
}

/// Sorts the options of a run into those that someone chose and the others, in the order of the
/// table.
void list_options(const Patch& recorded, const Patch& usual, report::ReportedRun& run) {
  for (const Field& spec : field_table()) {
    const Setting* const setting = recorded.find(spec.name);
    if (setting == nullptr) continue;
    const Setting* const before = usual.find(spec.name);
    const bool identity = std::ranges::find(kIdentity, spec.name) != kIdentity.end();
    const bool off = setting->value == Value(false);
    const bool same = before != nullptr ? before->value == setting->value : off;
    const bool chosen = identity || (!same && !(spec.name == "synthetic-data" && off));
    (chosen ? run.chosen : run.others)
        .push_back({.name = std::string(spec.name),
                    .value = to_string(setting->value),
                    .usual = before != nullptr && !identity ? to_string(before->value) : ""});
  }
}

/// Says so if the planner takes the network for another one than the run, which knew its data.
void check_network(report::ReportedRun& run) {
  constexpr std::string_view kBegin = "Total Parameters: ";
  for (const std::string& line : run.record.machine) {
    if (!line.starts_with(kBegin)) continue;
    const std::int64_t planned = run.planned->graph.trainable_elements();
    if (parse_number<std::int64_t>(line.substr(kBegin.size())) != planned)
      run.record.notes.push_back(fmt::format(
          "the planned network has {} parameters, but the log says '{}': without a "
          "checkpoint the run's number of classes is unknown, and that of the published "
          "data set is planned",
          planned, line));
  }
}

report::ReportedRun reported(const fs::path& directory, CostModel model) {
  report::ReportedRun run;
  run.record = report::read_run(directory);
  std::vector<std::string>& notes = run.record.notes;
  try {
    if (const std::optional<Patch> recorded = options_of(directory)) {
      list_options(*recorded, usual_options(directory, *recorded), run);
      run.planned = planned_run(directory, *recorded, model);
      check_network(run);
    } else {
      notes.emplace_back("config.toml is missing: network and configuration are unknown");
    }
  } catch (const Error& error) {
    notes.push_back(fmt::format("this version of millrace cannot plan the run: {}",
                                respelled(error.what(), Patch())));
  }
  if (run.record.trace.empty()) return run;
  try {
    run.traced = report::read_trace(run.record.trace);
  } catch (const Error& error) {
    notes.emplace_back(error.what());
  }
  return run;
}

/// Runs of the same name are told apart by their paths.
void name_apart(std::vector<report::ReportedRun>& runs) {
  std::map<std::string, int> times;
  for (const report::ReportedRun& run : runs) ++times[run.record.name];
  for (report::ReportedRun& run : runs)
    if (times[run.record.name] > 1) run.record.name = run.record.directory.string();
}

/// Beside the logs of a run; a comparison belongs to none of its runs.
fs::path output_of(const Invocation& invocation, std::size_t runs) {
  const fs::path page = "report.html";
  fs::path beside = runs == 1 ? invocation.arguments[0] / page : page;
  if (fs::exists(beside.parent_path() / "manifest.json"))  // what is in a checkpoint stays as it is
    beside = fs::weakly_canonical(beside.parent_path()).parent_path() / page;
  fs::path file = invocation.options.text("output").value_or(beside.string());
  if (fs::is_directory(file))
    fail(ErrorKind::Usage, "--output {}: is a directory: give the name of a file", file.string());
  return file;
}

}  // namespace

int command_report(const Invocation& invocation) {
  const Patch& options = invocation.options;
  const std::string format = options.text("format").value_or("html");
  if (format != "html")
    fail(ErrorKind::Usage, "--format {} has no effect here: a report is html", format);
  const CostModel model = cost_model(options);
  if (model == CostModel::Profile && invocation.arguments.size() > 1)
    fail(ErrorKind::Usage, "--cost-model profile measures the ops of one run, but {} are given",
         invocation.arguments.size());
  if (model == CostModel::Profile) warn_of_load();
  std::vector<report::ReportedRun> runs;
  for (const std::string& directory : invocation.arguments)
    runs.push_back(reported(directory, model));
  name_apart(runs);
  const fs::path file = output_of(invocation, runs.size());
  io::write_file_atomically(file,
                            report::html_page(runs, fmt::format("{} ({})", kVersion, kCommit)));
  for (const report::ReportedRun& run : runs)
    for (const std::string& note : run.record.notes)
      fmt::print(stderr, "{}: {}\n", printable(run.record.directory.string()), printable(note));
  fmt::print("Wrote {}\n", printable(file.string()));
  return 0;
}

}  // namespace millrace::cli

namespace millrace::tools {

cli::Tool report_tool() {
  using cli::Command;
  static constexpr auto kCommands = std::to_array<cli::CommandSpec>({
      {Command::Report, "report", "RUN..", cli::command_report,
       "Writes a page about runs: curves, network, schedule, events, configuration.",
       "millrace report logs/RN20_bs32_BN_16.32_v0.2.0_3S9"},
  });
  return {.commands = kCommands};
}

}  // namespace millrace::tools
