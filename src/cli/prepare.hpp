// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/datasets.hpp"
#include "comm/world.hpp"
#include "io/run_lock.hpp"
#include "train/benchmark.hpp"
#include "train/config.hpp"

namespace millrace::cli {

/// Everything a command hands to the trainer.
struct PreparedRun {
  train::TrainConfig config;
  Datasets data;
  std::vector<std::string> notices;
  std::optional<io::RunLock> lock;  ///< held while the run directory is written to
};

/// This machine as far as defaults depend on it: its cores are those that this process may use, or
/// that the ranks of this machine may use between them. Collective with a `world`.
[[nodiscard]] MachineFacts this_machine();
[[nodiscard]] MachineFacts this_machine(const comm::World& world);

/// Whether the run wants more ranks than there are, so that a launcher must start them.
[[nodiscard]] bool must_launch(const train::TrainConfig& config, const comm::World& world);

/// Opens the data and resolves the options; makes the run directory with config.toml in it as the
/// very last thing, so that a mistake leaves no directory behind; and not at all when a launcher
/// must start the ranks first. Collective, as the next two are.
[[nodiscard]] PreparedRun prepare_training(const Invocation& invocation, const comm::World& world);

/// The run at --restore-path with what the command line may change. Errors also: Usage without a
/// path, Io when there is no config.toml.
[[nodiscard]] PreparedRun prepare_restoring(const Invocation& invocation, const comm::World& world);

/// A training that is only checked, for one process: nothing is made.
[[nodiscard]] PreparedRun prepare_checking(const Invocation& invocation);

/// The run or the single checkpoint at --restore-path, to be validated: the configuration comes
/// from the newest checkpoint found there. Without a path it comes from the options alone, for
/// initial weights.
[[nodiscard]] PreparedRun prepare_validation(const Invocation& invocation);

/// A training that leaves nothing behind: `steps` and `warmup_steps` are what is to be measured.
/// Without a place for data it is synthetic.
struct PreparedBench {
  PreparedRun run;
  train::BenchLength length;
};
[[nodiscard]] PreparedBench prepare_bench(const Invocation& invocation, const comm::World& world);

}  // namespace millrace::cli
