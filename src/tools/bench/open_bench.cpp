// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cli/open_run.hpp"
#include "core/error.hpp"
#include "tools/bench/bench_output.hpp"
#include "train/agreement.hpp"

namespace millrace::cli {
namespace {

/// With --measured-epochs the data set says how many steps there are.
void set_epochs(const Patch& options, OpenedBench& bench) {
  const std::optional<double> epochs = options.real("measured-epochs");
  if (!epochs) return;
  const std::int64_t batch = bench.run.config.total_batch();
  const std::int64_t epoch = bench.dataset()->size() / batch;
  const double all = std::floor(*epochs * static_cast<double>(epoch));
  bench.length.steps = static_cast<std::int64_t>(std::min(all, 1e15)) - bench.length.warmup;
  if (bench.length.steps < 1)
    fail(ErrorKind::Usage,
         "{} epoch(s) of {} images have {} batches of {}, which leaves none to measure after {} "
         "warm-up steps: lower --warmup-steps, or raise --measured-epochs",
         *epochs, bench.dataset()->size(), all, batch, bench.length.warmup);
}

}  // namespace

OpenedBench open_bench(const Invocation& invocation, const comm::World& world) {
  require_asked_alike(world, request_of(invocation));
  Patch options = invocation.options;
  OpenedBench bench;
  const bool infers = options.flag("inference");
  if (infers) bench.use = training::BenchUse::Inference;
  const training::BenchLength usual = options.flag("kernels") ? training::BenchLength{2, 10}
                                      : infers                ? training::BenchLength{20, 80}
                                                              : training::BenchLength{10, 50};
  bench.length = {.warmup = options.integer("warmup-steps").value_or(usual.warmup),
                  .steps = options.integer("steps").value_or(usual.steps)};
  drop_length(options);
  if (const auto only = options.integer("batch-sizes")) impose(options, "batch-size", *only);
  if (!options.text("data-dir") && image_source(options) == run::ImageSource::Files)
    impose(options, "synthetic-data", true);
  impose(options, "iterations", bench.length.all());
  impose(options, "validation-mode", std::string(infers ? "all" : "none"));
  const MachineFacts machine = this_machine(world);
  const training::FailTogether together(world);
  bench.run = training::open_in_turn(world, [&](const std::string& decided) {
    return training::open_and_resolve(options, machine, decided, request_of(invocation));
  });
  together.run([&] { set_epochs(options, bench); });
  require_alike(world, bench.run);
  bench.run.notices.insert(bench.run.notices.begin(), invocation.notices.begin(),
                           invocation.notices.end());
  return bench;
}

}  // namespace millrace::cli
