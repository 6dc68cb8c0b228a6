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
#include "tools/bench/bench_machine.hpp"
#include "tools/bench/bench_output.hpp"
#include "tools/bench/bench_runs.hpp"
#include "tools/bench/benchmark.hpp"
#include "train/agreement.hpp"
#include "train/kernel_rules.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

namespace {

/// Errors: Usage for options that do not go with what is measured.
void require_measurable(const Patch& options, const run::Run& config) {
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
/// `output`.
train::DataBenchResult measure(const OpenedBench& prepared, const Patch& options,
                               BenchOutput* output, const comm::World& world) {
  const auto after_step = [output](std::int64_t step, double seconds) {
    if (output != nullptr) output->after_step(step, seconds);
  };
  const run::Run& config = prepared.run.config;
  if (options.flag("dataset-benchmark"))
    return train::bench_data(config, world, prepared.dataset(), prepared.length, after_step);
  return {.together = train::bench(config, world, prepared.dataset(), prepared.use, prepared.length,
                                   after_step)};
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
  const device::Environment environment(config.threads, train::gpu_of(config, world.rank()));
  fit_layout(prepared.run, world);
  std::optional<BenchOutput> output;
  train::FailTogether(world).lead([&] {
    output.emplace(prepared, options);
    print_notices(invocation, notices_of(prepared.run, invocation));
    print_lines(stderr, train::describe_kernel_rules(config));
    warn_of_load();
    output->begin();
  });
  const train::DataBenchResult result =
      measure(prepared, options, output ? &*output : nullptr, world);
  if (output) output->finish(result);
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
