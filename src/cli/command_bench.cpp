// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>

#include "cli/bench_machine.hpp"
#include "cli/commands.hpp"
#include "cli/fit_layout.hpp"
#include "cli/launch.hpp"
#include "cli/prepare.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "train/benchmark.hpp"
#include "train/setup.hpp"

namespace millrace::cli {

namespace {

/// Floating-point operations of training: three times those of a forward pass.
double gflops_of(const train::BenchResult& result) {
  return result.images_per_second() * static_cast<double>(result.macs_per_image) * 6.0e-9;
}

Json as_json(const train::BenchResult& result, int threads) {
  return Json::object({{"steps", result.step_seconds.size()},
                       {"threads", threads},
                       {"images_per_step", result.images_per_step},
                       {"median_ms", result.median_seconds() * 1e3},
                       {"p10_ms", result.percentile_seconds(0.1) * 1e3},
                       {"p90_ms", result.percentile_seconds(0.9) * 1e3},
                       {"images_per_second", result.images_per_second()},
                       {"gflop_per_second", gflops_of(result)},
                       {"loader_wait_ms", result.loader_seconds * 1e3},
                       {"arena_bytes", result.arena_bytes}});
}

void print_text(const train::BenchResult& result, int threads) {
  const double median = result.median_seconds();
  fmt::print("step time     {:.2f} ms (median of {}; 10 % {:.2f}, 90 % {:.2f})\n", median * 1e3,
             result.step_seconds.size(), result.percentile_seconds(0.1) * 1e3,
             result.percentile_seconds(0.9) * 1e3);
  fmt::print("throughput    {:.1f} images/s, {:.0f} GFLOP/s on {} thread(s)\n",
             result.images_per_second(), gflops_of(result), threads);
  fmt::print("loader wait   {:.3f} ms per step ({:.2f} %)\n", result.loader_seconds * 1e3,
             100.0 * result.loader_seconds / median);
  fmt::print("device memory {}\n", human_bytes(result.arena_bytes));
}

void print_loaders(const train::DataBenchResult& result) {
  fmt::print("loaders alone {:.1f} images/s\n", result.loader_rate);
  fmt::print("devices alone {:.1f} images/s, on images in memory\n", result.device_rate);
  if (result.loader_limits())
    fmt::print("limit         the loaders: the devices could process {:.2f} times as many\n",
               result.device_rate / result.loader_rate);
  else
    fmt::print("limit         the devices: the loaders could deliver {:.2f} times as many\n",
               result.loader_rate / result.device_rate);
}

/// With --dataset-benchmark, loaders and devices are also measured separately.
train::DataBenchResult measure(const PreparedBench& prepared, bool apart,
                               const comm::World& world) {
  const std::shared_ptr<const io::Dataset>& set = prepared.run.data.train;
  if (apart) return train::bench_data(prepared.run.config, world, set, prepared.length);
  return {.together = train::bench(prepared.run.config, world, set, prepared.length)};
}

int bench(const Invocation& invocation, const comm::World& world, StartupWatch& watch) {
  if (invocation.options.text("machine-file")) return bench_machine(invocation, world, watch);
  PreparedBench prepared = prepare_bench(invocation, world);
  watch.end();
  const train::TrainConfig& config = prepared.run.config;
  const bool apart = invocation.options.flag("dataset-benchmark");
  if (apart && config.data.source == train::ImageSource::Device)
    fail(ErrorKind::Usage,
         "--dataset-benchmark measures how images are read, but --synthetic-data reads none: leave "
         "one of them out, or use --generated-data");
  if (must_launch(config, world)) return launch_ranks(config, invocation);
  const int cores = this_machine(world).cores;  // before this rank keeps to its own
  pin_rank(world, config);
  const device::Environment environment(config.threads, train::gpu_of(config, world.rank()));
  fit_layout(prepared.run, world);
  if (world.rank() == 0) {
    print_notices(invocation.options, notices_of(prepared.run));
    note_load(cores);
  }
  const train::DataBenchResult result = measure(prepared, apart, world);
  if (world.rank() != 0) return 0;
  if (invocation.options.flag("json")) {
    Json json = as_json(result.together, config.threads);
    if (apart) {
      json.set("loader_images_per_second", result.loader_rate);
      json.set("device_images_per_second", result.device_rate);
      json.set("limit", result.loader_limits() ? "loaders" : "devices");
    }
    fmt::print("{}\n", json.dump());
    return 0;
  }
  print_text(result.together, config.threads);
  if (apart) print_loaders(result);
  if (invocation.options.flag("pipeline")) fmt::print("{}\n", result.together.pipeline);
  return 0;
}

}  // namespace

int command_bench(const Invocation& invocation) {
  StartupWatch watch(invocation.options);
  const comm::World world;
  return run_on_all_ranks(world, [&] { return bench(invocation, world, watch); });
}

}  // namespace millrace::cli
