// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/launcher_output.hpp"
#include "cli/open_run.hpp"
#include "comm/world.hpp"
#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/checkpoint.hpp"
#include "models/registry.hpp"
#include "ops/backend.hpp"
#include "run/recipes.hpp"
#include "train/memory.hpp"
#include "train/setup.hpp"
#include "train/signals.hpp"
#include "train/summaries.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {
namespace {

/// Messages in the words of the command line, and the command that goes on.
training::Voice voice_of(const Patch& options, const Spellings& spellings) {
  return {.spell = [options, spellings](
                       std::string text) { return respelled(std::move(text), options, spellings); },
          .next =
              [](const std::filesystem::path& run, bool finished) {
                return fmt::format("millrace {} --restore-path {}",
                                   finished ? "validate" : "restore", shell_word(run.string()));
              }};
}

training::TrainInputs inputs_of(const OpenedRun& run, const Invocation& invocation) {
  const training::Guests guests = training::built_guests();
  std::vector<std::string> notices = notices_of(run, invocation);
  if (std::string loaded = load_notice(); !loaded.empty()) notices.push_back(std::move(loaded));
  return {.train = run.data.train,
          .validation = run.data.validation,
          .command_line = invocation.command_line,
          .notices = std::move(notices),
          .details = run.config.verbosity == run::Verbosity::Verbose ? environment_lines()
                                                                     : std::vector<std::string>{},
          .voice = voice_of(run.options, invocation.spellings),
          .summaries = guests.summaries,
          .files = guests.files,
          .validation_set_size = run.data.facts.validation_size};
}

/// 16 bits that nobody asked for only cost time where no products are made of them. Known once the
/// device is.
void note_default_precision(OpenedRun& run) {
  const Setting* const precision = run.options.find("precision");
  const DType type = run.config.precision.activations;
  if (precision == nullptr || precision->origin != Origin::Dialect || type == DType::F32) return;
  const std::unique_ptr<ops::Backend> kernels = ops::make_default_backend();
  if (kernels->multiplies(type)) return;
  const std::string why = kernels->why_not(type);
  run.notices.push_back(fmt::format("{}: --precision 32.32 is faster than {}, the default of {}",
                                    why.empty() ? "there are no 16-bit products" : why,
                                    to_string(precision->value), precision->where));
}

int code_of(training::Outcome outcome) {
  switch (outcome) {
    case training::Outcome::Finished:
      return 0;
    case training::Outcome::Preempted:
      return exit_code(ErrorKind::Preempted);
    case training::Outcome::Interrupted:
      return exit_code(ErrorKind::Interrupted);
  }
  return exit_code(ErrorKind::Internal);
}

/// What a supervisor does, nobody does for ranks that another launcher has started. Errors: Usage,
/// for options of a supervisor. Returns what is to be told, or "".
std::string without_supervisor(const Patch& options) {
  if (!options.flag("elastic") || !comm::started_by_launcher() ||
      std::getenv(kLaunchedVariable) != nullptr)
    return {};
  for (const char* name : {"min-ranks", "restarts", "probe-every"})
    if (const Setting* const given = options.typed(name))
      fail(ErrorKind::Usage,
           "{} has no effect here: millrace starts only those ranks again that it has started, but "
           "another launcher (mpirun, srun) started these: leave it out, or start millrace without "
           "a launcher, with --hosts",
           given->where);
  return "--elastic: another launcher (mpirun, srun) started these ranks, so a lost one ends the "
         "job; started again, it goes on, on any number of ranks";
}

using Open = OpenedRun (*)(const training::RunRequest&, const comm::World&);
using Request = training::RunRequest (*)(const Invocation&, const comm::World&);
using Train = training::Outcome (*)(const run::Run&, const training::TrainInputs&,
                                    const comm::World&);

int run_training(const Invocation& invocation, Request request, Open open, Train train) {
  const training::StopSignals signals;  // catch signals before a launcher can forward one
  StartupWatch watch(invocation.options);
  const comm::World world;
  watch.follow(world);
  return run_on_all_ranks(world, invocation, [&] {
    training::RunRequest asked = request(invocation, world);
    std::string notice;
    // Once all ranks have the same words, and before there is a run directory.
    asked.check = [&](const run::Run&) { notice = without_supervisor(invocation.options); };
    OpenedRun run = open(asked, world);
    if (!notice.empty()) run.notices.push_back(std::move(notice));
    watch.end();  // the training has its own watchdog
    const bool supervised = run.config.layout.elastic && !comm::started_by_launcher();
    if (supervised || must_launch(run.config, world)) {
      // A supervisor restores again and again, and each time as it was asked to.
      if (supervised && !run.config.run_directory.empty()) record_options(run);
      run.lock.reset();
      return launch_ranks(run.config, invocation, &training::StopSignals::received);
    }
    pin_rank(world, run.config);
    const device::Environment environment(run.config.threads,
                                          training::gpu_of(run.config, world.rank()));
    fit_layout(run, world);
    note_default_precision(run);
    training::TrainInputs inputs = inputs_of(run, invocation);
    inputs.stop_asked = &training::StopSignals::received;
    if (run.config.layout.elastic && world.rank() == 0)
      inputs.callbacks.after_update = [told = std::getenv(kLaunchedVariable) ==
                                              nullptr](const training::Update&) mutable {
        if (!std::exchange(told, true)) print_error(kRanksTrain);  // to the supervisor
      };
    const training::Outcome outcome = train(run.config, inputs, world);
    if (const std::string folder = run.options.text("export-dir").value_or("");
        !folder.empty() && outcome == training::Outcome::Finished && world.rank() == 0)
      print_lines(stdout,
                  training::built_guests().files.export_run(run.config.run_directory, folder));
    return code_of(outcome);
  });
}

/// Prints what would run.
void print_checked(const OpenedRun& run, const Invocation& invocation) {
  const models::Graph graph = models::build_model(run.config.model);
  print_lines(stdout, notices_of(run, invocation));
  print_lines(stdout, training::describe_computing(run.config));
  // As the start of a training prints them.
  fmt::print("Total Parameters: {}\n Batch Size: {}\n Image Size: {}x{}\n",
             graph.trainable_elements(), run.config.total_batch(), run.config.model.image.h,
             run.config.model.image.w);
  fmt::print("{} of {} x {} on {}\n", counted(run.config.iterations, "update"),
             counted(std::ssize(run.config.pipeline.ranges), "stage"),
             counted(run.config.pipeline.ranks.replicas, "replica"),
             counted(run.config.pipeline.ranks.ranks, "rank"));
}

/// --compile-only: everything that a start finds out before it trains.
int check_training(const Invocation& invocation) {
  const comm::World world;
  return run_on_all_ranks(world, invocation, [&] {
    OpenedRun run = training::open_checked_run(request_of_new(invocation, world), world);
    pin_rank(world, run.config);
    const device::Environment environment(run.config.threads,
                                          training::gpu_of(run.config, world.rank()));
    fit_layout(run, world);
    note_default_precision(run);
    training::require_room(run.config, inputs_of(run, invocation), world,
                           ranks_here(run.machine, run.config));
    if (world.rank() == 0) print_checked(run, invocation);
    return 0;
  });
}

/// A recipe for validation has no length and no rates: a training would take defaults for them.
void require_training_recipe(const Patch& options) {
  const auto config = options.text("config");
  if (config && run::only_validates(*config))
    fail(ErrorKind::Usage,
         "--config {0}: this recipe validates a trained network and trains none: millrace validate "
         "--config {0} --restore-path RUN",
         *config);
}

/// A supervised training whose run is there already, as a restore of it; otherwise nothing.
/// Schedulers that start a job again do so with the words of its first start.
std::optional<Invocation> continuing(const Invocation& invocation) {
  const std::string directory = invocation.options.text("run-dir").value_or("");
  if (!invocation.options.flag("elastic") || directory.empty() ||
      !std::filesystem::is_directory(directory) || io::list_checkpoints(directory).empty())
    return std::nullopt;
  Invocation restore = invocation;
  restore.options.erase("run-dir");
  impose(restore.options, "restore-path", directory);
  return restore;
}

}  // namespace

int command_train(const Invocation& invocation) {
  require_training_recipe(invocation.options);
  if (const auto restore = continuing(invocation)) return command_restore(*restore);
  if (invocation.options.flag("compile-only")) return check_training(invocation);
  if (invocation.options.flag("dataset-benchmark")) return spec_of(Command::Bench).run(invocation);
  return run_training(invocation, request_of_new, training::open_new_run, training::train);
}

int command_restore(const Invocation& invocation) {
  return run_training(
      invocation, [](const Invocation& asked, const comm::World&) { return request_of(asked); },
      training::open_restored_run, training::restore);
}

}  // namespace millrace::cli
