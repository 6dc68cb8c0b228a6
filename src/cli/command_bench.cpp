// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/prepare.hpp"
#include "comm/world.hpp"
#include "core/text.hpp"
#include "train/trainer.hpp"

namespace millrace::cli {

namespace {

int bench(const Invocation& invocation, const comm::World& world, StartupWatch& watch) {
  const PreparedBench prepared = prepare_bench(invocation, world);
  watch.end();
  if (must_launch(prepared.run.config, world)) return launch_ranks(prepared.run.config, invocation);
  pin_rank(world, prepared.run.config);
  for (const std::string& notice : prepared.run.notices) fmt::print(stderr, "{}\n", notice);
  const train::TrainConfig& config = prepared.run.config;
  const train::BenchResult result =
      train::bench(config, world, prepared.run.data.train, prepared.warmup_steps, prepared.steps);
  if (world.rank() != 0) return 0;
  const double median = result.median_seconds();
  const double rate = static_cast<double>(result.images_per_step) / median;
  // A training step multiplies three times as often as a forward pass.
  const double gflops = rate * static_cast<double>(result.macs_per_image) * 6.0e-9;
  if (invocation.options.flag("json")) {
    const nlohmann::ordered_json json = {{"steps", result.step_seconds.size()},
                                         {"threads", config.threads},
                                         {"images_per_step", result.images_per_step},
                                         {"median_ms", median * 1e3},
                                         {"p10_ms", result.percentile_seconds(0.1) * 1e3},
                                         {"p90_ms", result.percentile_seconds(0.9) * 1e3},
                                         {"images_per_second", rate},
                                         {"gflop_per_second", gflops},
                                         {"loader_wait_ms", result.loader_seconds * 1e3},
                                         {"arena_bytes", result.arena_bytes}};
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("step time     {:.2f} ms (median of {}; 10 % {:.2f}, 90 % {:.2f})\n", median * 1e3,
             result.step_seconds.size(), result.percentile_seconds(0.1) * 1e3,
             result.percentile_seconds(0.9) * 1e3);
  fmt::print("throughput    {:.1f} images/s, {:.0f} GFLOP/s on {} thread(s)\n", rate, gflops,
             config.threads);
  fmt::print("loader wait   {:.3f} ms a step ({:.2f} %)\n", result.loader_seconds * 1e3,
             100.0 * result.loader_seconds / median);
  fmt::print("device memory {}\n", human_bytes(result.arena_bytes));
  if (invocation.options.flag("pipeline")) fmt::print("{}\n", result.pipeline);
  return 0;
}

}  // namespace

int command_bench(const Invocation& invocation) {
  StartupWatch watch(invocation.options);
  const comm::World world;
  return run_on_all_ranks(world, [&] { return bench(invocation, world, watch); });
}

}  // namespace millrace::cli
