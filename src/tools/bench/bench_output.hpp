// SPDX-License-Identifier: Apache-2.0
//
// What `bench` prints and writes of a single run, and of several.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/open_run.hpp"
#include "io/atomic_file.hpp"
#include "tools/bench/bench_run.hpp"
#include "tools/bench/bench_table.hpp"
#include "tools/bench/benchmark.hpp"
#include "tools/bench/nvidia_log.hpp"
#include "train/line_file.hpp"
#include "train/progress.hpp"

namespace millrace::cli {

/// A training that keeps nothing, or inference, for measurements. Without a data directory its data
/// are synthetic.
struct OpenedBench {
  OpenedRun run;
  training::BenchUse use = training::BenchUse::Training;
  training::BenchLength length;
  /// What it reads: the training images, or for inference those of the validation.
  [[nodiscard]] const std::shared_ptr<const io::Dataset>& dataset() const {
    return use == training::BenchUse::Training ? run.data.train : run.data.validation;
  }
};
/// Errors: Usage, if --measured-epochs ends before the warm-up does.
[[nodiscard]] OpenedBench open_bench(const Invocation& invocation, const comm::World& world);

enum class BenchFormat { Text, Csv, Json };
/// What --format and --json ask for. Errors: Usage if they contradict each other, or for a format
/// of other commands.
[[nodiscard]] BenchFormat bench_format(const Patch& options);

void print_table(const report::BenchTable& table, BenchFormat format);

/// Reports a run: step by step on the terminal and to NVIDIA's loggers, and at its end.
class BenchOutput {
 public:
  /// Opens the files, so that they are found out to be unwritable before anything is measured. Both
  /// arguments must outlive this. Errors: Usage, Io.
  BenchOutput(const OpenedBench& prepared, const Patch& options);

  void begin();
  void after_step(std::int64_t step, double seconds);
  void finish(const training::DataBenchResult& result);
  void finish(const training::KernelBenchResult& result);

 private:
  void say(std::string_view message) const;
  void log(Json step, Json data);
  void print_json(const training::DataBenchResult& result) const;
  void print_text(const training::DataBenchResult& result) const;

  const OpenedBench& prepared_;
  const Patch& options_;
  BenchFormat format_;
  report::BenchRun run_;
  bool separate_;                        ///< loaders and devices are also measured on their own
  std::optional<std::int64_t> display_;  ///< measured steps between NVIDIA's lines
  std::optional<io::StagedFile> results_;
  std::optional<training::LineFile> log_;
  report::UnixTime start_;
  training::Console console_;
};

}  // namespace millrace::cli
