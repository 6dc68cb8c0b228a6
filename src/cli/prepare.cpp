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

/// Sets an option as the command itself demands it.
void impose(Options& options, std::string_view name, Value value) {
  options.set(
      *find_option(name),
      {.value = std::move(value), .origin = Origin::File, .where = fmt::format("--{}", name)});
}

Opened open_and_resolve(Options options) {
  Opened opened;
  if (!dataset_is_told(options) && !options.flag("synthetic-data")) {
    const std::string found = find_dataset(*options.text("data-dir"));
    if (!found.empty()) impose(options, "dataset", found);
  }
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

/// The configuration that a checkpoint was written under.
Options recorded_in(const io::CheckpointReader& checkpoint) {
  return parse_config(checkpoint.header().config_toml,
                      (checkpoint.path() / "manifest.json").string());
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
  const std::filesystem::path file = directory / "config.toml";
  if (!std::filesystem::exists(file))
    fail(ErrorKind::Io,
         "{}: is missing: --restore-path takes the directory of a run, in which config.toml and "
         "checkpoints lie",
         file.string());
  const Options written = read_config_file(file);
  io::RunLock lock(directory);
  // The checkpoint knows what it was trained with; the file may have been edited since.
  std::vector<std::string> complaints;  // the trainer repeats them
  const Options recorded =
      continued_options(written, recorded_in(io::open_newest(directory, complaints)));
  PreparedRun run = open_and_resolve(continued_options(invocation.options, recorded)).run;
  run.config.run_directory = directory;
  run.lock = std::move(lock);
  return run;
}

PreparedRun prepare_validation(const Invocation& invocation) {
  const std::filesystem::path path = restore_path(invocation.options);
  std::vector<std::string> complaints;
  const Options recorded = recorded_in(io::open_newest(path, complaints));
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
  options.erase("no-validation");
  impose(options, "validation-mode", std::string("none"));
  bench.run = open_and_resolve(options).run;
  return bench;
}

}  // namespace millrace::cli
