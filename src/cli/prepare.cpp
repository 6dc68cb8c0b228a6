// SPDX-License-Identifier: Apache-2.0
#include "cli/prepare.hpp"

#include <fmt/format.h>

#include <thread>

#include "cli/resolve.hpp"
#include "cli/run_name.hpp"
#include "core/error.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "millrace_version.hpp"
#include "models/registry.hpp"

namespace millrace::cli {
namespace {

struct Opened {
  PreparedRun run;
  RunPlace place;
};

Opened open_and_resolve(const Options& options) {
  Opened opened;
  opened.run.data = open_datasets(data_request(options));
  Resolution resolution = resolve(options, opened.run.data.facts, this_machine());
  // A network that cannot be built is refused before anything is written.
  (void)models::build_model(resolution.config.model);
  opened.run.config = std::move(resolution.config);
  opened.run.notices = std::move(resolution.notices);
  opened.place = std::move(resolution.place);
  return opened;
}

std::filesystem::path restore_path(const Options& options) {
  const std::optional<std::string> path = options.text("restore-path");
  if (!path)
    fail(ErrorKind::Usage, "--restore-path is missing: which run directory should be used?");
  return *path;
}

/// Sets an option as the command itself demands it.
void impose(Options& options, std::string_view name, Value value) {
  options.set(
      *find_option(name),
      {.value = std::move(value), .origin = Origin::File, .where = fmt::format("--{}", name)});
}

}  // namespace

MachineFacts this_machine() {
  const unsigned cores = std::thread::hardware_concurrency();
  return {.cores = cores == 0 ? 1 : static_cast<int>(cores)};
}

PreparedRun prepare_training(const Invocation& invocation) {
  auto [run, place] = open_and_resolve(invocation.options);
  run.config.run_directory = create_run_directory(place, run.config, kVersion);
  if (run.config.run_directory.empty()) return std::move(run);
  run.lock.emplace(run.config.run_directory);
  io::write_file_atomically(run.config.run_directory / "config.toml", run.config.resolved_toml);
  return std::move(run);
}

PreparedRun prepare_restoring(const Invocation& invocation) {
  const std::filesystem::path directory = restore_path(invocation.options);
  const Options recorded = read_config_file(directory / "config.toml");
  io::RunLock lock(directory);
  PreparedRun run = open_and_resolve(continued_options(invocation.options, recorded)).run;
  run.config.run_directory = directory;
  run.lock = std::move(lock);
  return run;
}

PreparedRun prepare_validation(const Invocation& invocation) {
  const std::filesystem::path path = restore_path(invocation.options);
  std::vector<std::string> complaints;
  const io::CheckpointReader newest = io::open_newest(path, complaints);
  const Options recorded =
      parse_config(newest.header().config_toml, (newest.path() / "manifest.json").string());
  // Looking at weights in another precision changes no training.
  Options given = invocation.options;
  Options options;
  if (const Setting* precision = given.find("precision")) {
    options.set(*find_option("precision"), *precision);
    given.erase("precision");
  }
  options = merge(std::move(options), continued_options(given, recorded));
  options.erase("no-validation");
  impose(options, "validation-mode", std::string("all"));
  PreparedRun run = open_and_resolve(options).run;
  run.notices.insert(run.notices.begin(), complaints.begin(), complaints.end());
  return run;
}

PreparedBench prepare_bench(const Invocation& invocation) {
  PreparedBench bench;
  bench.steps = invocation.options.integer("steps").value_or(50);
  bench.warmup_steps = invocation.options.integer("warmup-steps").value_or(10);
  Options options = invocation.options;
  options.erase("epochs");  // of a configuration file made for training
  if (!options.text("data-dir")) impose(options, "synthetic-data", true);
  impose(options, "iterations", bench.steps + bench.warmup_steps);
  bench.run = open_and_resolve(options).run;
  return bench;
}

}  // namespace millrace::cli
