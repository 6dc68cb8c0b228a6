// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>

#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/open_run.hpp"
#include "cli/planning.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "device/environment.hpp"
#include "device/parallel.hpp"
#include "tools/bench/bench_machine.hpp"
#include "tools/bench/bench_output.hpp"
#include "tools/bench/bench_runs.hpp"
#include "tools/bench/benchmark.hpp"
#include "train/agreement.hpp"
#include "train/kernel_rules.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

namespace {

/// Errors: Usage for what goes with no table of kernels.
void require_kernels(const Patch& options, const run::Run& config) {
  if (!options.flag("kernels")) return;
  if constexpr (!device::kOnCores)
    fail(ErrorKind::Usage,
         "--kernels compares kernels with the rates of processor cores, but this program computes "
         "on another device: there, train --trace FILE --trace-kernels shows their times");
  for (const char* name : {"inference", "dataset-benchmark", "pipeline", "display-every",
                           "results-file", "log-filename"})
    if (const Setting* const given = options.typed(name))
      fail(ErrorKind::Usage,
           "{} has no effect with --kernels, which prints a table of training steps: leave one of "
           "them out",
           given->where);
  if (config.check_exceptions)
    fail(ErrorKind::Usage,
         "--fp-exceptions checks the result of each kernel and changes the times that --kernels "
         "measures: leave one of them out");
}

/// Errors: Usage for options that do not go with what is measured.
void require_measurable(const Patch& options, const run::Run& config) {
  require_kernels(options, config);
  const bool reads_apart = options.flag("dataset-benchmark");
  if (reads_apart && config.data.source == run::ImageSource::Device)
    fail(ErrorKind::Usage,
         "--dataset-benchmark measures how images are read, but --synthetic-data reads none: leave "
         "one of them out, or use --generated-data");
  if (!options.flag("inference")) return;
  if (reads_apart)
    fail(ErrorKind::Usage,
         "--dataset-benchmark measures how a training reads its images: leave --inference out");
  if (config.device_memory > 0)
    fail(ErrorKind::Usage,
         "--device-memory limits a training: leave it out, or measure one without --inference");
}

/// With --dataset-benchmark, loaders and devices are also measured separately. Rank 0 has an
/// `output`, which tells the result.
void measure(const OpenedBench& prepared, const Patch& options, BenchOutput* output,
             const comm::World& world) {
  const auto after_step = [output](std::int64_t step, double seconds) {
    if (output != nullptr) output->after_step(step, seconds);
  };
  const auto finish = [output](const auto& result) {
    if (output != nullptr) output->finish(result);
  };
  const run::Run& config = prepared.run.config;
  const auto& dataset = prepared.dataset();
  if (options.flag("kernels"))
    return finish(training::bench_kernels(config, world, dataset, prepared.length,
                                          training::measure_peaks(world), after_step));
  if (options.flag("dataset-benchmark"))
    return finish(training::bench_data(config, world, dataset, prepared.length, after_step));
  finish(training::DataBenchResult{.together = training::bench(config, world, dataset, prepared.use,
                                                               prepared.length, after_step)});
}

int bench(const Invocation& invocation, const comm::World& world, StartupWatch& watch) {
  const Patch& options = invocation.options;
  (void)cluster_of(options, invocation.environment);  // refuses options that need --hosts
  if (options.text("machine-file")) return bench_machine(invocation, world, watch);
  (void)bench_format(options);
  OpenedBench prepared = open_bench(invocation, world);
  watch.end();
  const run::Run& config = prepared.run.config;
  require_measurable(options, config);
  if (must_launch(config, world)) return launch_ranks(config, invocation);
  pin_rank(world, config);
  const device::Environment environment(config.threads, training::gpu_of(config, world.rank()));
  fit_layout(prepared.run, world);
  std::optional<BenchOutput> output;
  training::FailTogether(world).lead([&] {
    output.emplace(prepared, options);
    print_notices(invocation, notices_of(prepared.run, invocation));
    print_lines(stderr, training::describe_kernel_rules(config));
    warn_of_load();
    output->begin();
  });
  measure(prepared, options, output ? &*output : nullptr, world);
  return 0;
}

}  // namespace

int command_bench(const Invocation& invocation) {
  if (wants_several_runs(invocation.options))
    return run_on_all_ranks(comm::World(comm::World::Alone()), invocation,
                            [&] { return bench_several(invocation); });
  StartupWatch watch(invocation.options);
  const comm::World world;
  return run_on_all_ranks(world, invocation, [&] { return bench(invocation, world, watch); });
}

}  // namespace millrace::cli

namespace millrace::tools {

cli::Tool bench_tool() {
  using cli::Command;
  static constexpr auto kCommands = std::to_array<cli::CommandSpec>({
      {Command::Bench, "bench", "", cli::command_bench,
       "Measures training or inference after a warm-up; makes tables over batch, ranks, precision.",
       "millrace bench --dataset cifar-10 --model-size 20 --inference --batch-sizes 1,8,64"},
  });
  return {.commands = kCommands};
}

}  // namespace millrace::tools
