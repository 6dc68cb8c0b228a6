// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_tune.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/prepare.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "io/atomic_file.hpp"
#include "ops/backend.hpp"
#include "train/kernel_tuning.hpp"

namespace millrace::cli {
namespace {

/// Errors: Usage for options of a measured training.
void require_no_training(const Options& options) {
  constexpr auto kOfRuns = std::to_array<const char*>(
      {"steps", "measured-epochs", "warmup-steps", "display-every", "results-file", "log-filename",
       "json", "format", "dataset-benchmark", "pipeline", "kernel-table"});
  for (const char* const name : kOfRuns)
    if (const Setting* const given = options.typed(name))
      fail(ErrorKind::Usage,
           "{} has no effect with --tune, which measures single kernels: leave it out",
           given->where);
}

void require_alone(const train::TrainConfig& config, const comm::World& world) {
  if (config.pipeline.ranks.ranks == 1 && world.size() == 1) return;
  fail(ErrorKind::Usage,
       "--tune measures on one GPU, and its table serves all GPUs of the kind: leave --ranks, "
       "--shards and --replicas out, and start one process");
}

/// The table that the file has so far.
KernelTable table_in(const std::filesystem::path& file, const ops::KernelTuner& tuner) {
  KernelTable table{.device = tuner.device(), .library = tuner.library(), .rows = {}};
  if (!std::filesystem::exists(file)) return table;
  KernelTable found = parse_kernel_table(io::read_text(file, kMaxTableBytes), file.string());
  if (const std::string unfit = why_unfit(found, table.device, table.library); !unfit.empty())
    fail(ErrorKind::Usage,
         "{}: this table cannot be extended, as {}: remove it, or give another name", file.string(),
         unfit);
  return found;
}

/// "  7 of 69  forward          256 of ..: engine 45 takes 81.2 us, proposed engine 28 103.4 us".
std::string line_of(std::size_t number, std::size_t all, const train::LinearWork& work,
                    const TableRow* row) {
  std::string line =
      fmt::format("{:3} of {}  {:<15} {}: ", number, all, name_of(work.pass), describe(work.shape));
  if (row == nullptr) return line + "left to another library or our own kernels";
  line += fmt::format("engine {} takes {:.1f} us", row->best.choice.engine, row->best.microseconds);
  if (row->best.choice == row->usual.choice) return line + ", as proposed";
  return line + fmt::format(", proposed engine {} {:.1f} us", row->usual.choice.engine,
                            row->usual.microseconds);
}

}  // namespace

void tune_into(const std::filesystem::path& file, const train::TrainConfig& config, train::Use use,
               ops::KernelTuner& tuner) {
  KernelTable all = table_in(file, tuner);
  io::StagedFile written(file);  // fails before anything is measured
  const KernelTable table =
      train::tune_kernels(config, use, tuner,
                          [](std::size_t number, std::size_t count, const train::LinearWork& work,
                             const TableRow* row) {
                            fmt::print("{}\n", line_of(number, count, work, row));
                            std::fflush(stdout);
                          });
  double best = 0.0;
  double usual = 0.0;
  for (const auto& [key, row] : table.rows) {
    best += row.best.microseconds;
    usual += row.usual.microseconds;
    all.rows.insert_or_assign(key, row);
  }
  const std::string text = to_text(all);
  written.write(std::as_bytes(std::span(text)), 0);
  written.commit();
  fmt::print(
      "{} passes of one micro-batch, each shape once: {:.0f} us with these kernels, {:.0f} us "
      "with those that {} proposes\n",
      table.rows.size(), best, usual, tuner.library());
  const std::string shown = printable(file.string());
  fmt::print("Written to {}: --kernel-table {} uses it\n", shown, shown);
}

void require_tunable(const Options& options) {
  const std::optional<std::string> file = options.text("tune");
  if (!file || ops::takes_rules()) return;
  fail(ErrorKind::Usage,
       "--tune {}: there is nothing to tune here: only cuDNN offers several kernels for an op, and "
       "this build computes without it",
       *file);
}

int bench_tune(const Invocation& invocation, const comm::World& world, StartupWatch& watch) {
  const std::filesystem::path file = *invocation.options.text("tune");
  require_no_training(invocation.options);
  const PreparedBench prepared = prepare_bench(invocation, world);
  watch.end();
  const train::TrainConfig& config = prepared.run.config;
  require_alone(config, world);
  const device::Environment environment(config.threads, train::gpu_of(config, world.rank()));
  print_notices(invocation.options, notices_of(prepared.run));
  const std::unique_ptr<ops::KernelTuner> tuner = ops::make_kernel_tuner(config.kernels);
  fmt::print("{}, {}\n", tuner->device(), tuner->library());
  const bool infers = prepared.use == train::BenchUse::Inference;
  tune_into(file, config, infers ? train::Use::Inference : train::Use::Training, *tuner);
  return 0;
}

}  // namespace millrace::cli
