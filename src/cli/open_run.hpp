// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/datasets.hpp"
#include "cli/this_machine.hpp"
#include "comm/world.hpp"
#include "io/atomic_file.hpp"
#include "io/checkpoint.hpp"
#include "models/graph.hpp"
#include "run/run.hpp"
#include "train/network_facts.hpp"

namespace millrace::cli {

/// Removes the options for length, warm-up, horizon and validation of a training. For commands that
/// run only a few steps: recipes may contain these options, but they have no meaning there.
void drop_length(Patch& options);

/// Prints notices, one per line, without control characters. Fields are spelled as options.
void print_lines(std::FILE* out, const std::vector<std::string>& lines);

/// Prints notices to standard error, with what the environment sets if --verbose asks for it.
void print_notices(const Invocation& invocation, const std::vector<std::string>& lines);

/// What a command passes to the trainer.
struct OpenedRun : Resolution {
  Patch options = {};
  MachineFacts machine = {};
  Datasets data = {};
  bool is_new = false;                   ///< whether the run directory was made for this run
  std::optional<io::RunLock> lock = {};  ///< held while the run directory is in use
};

/// Requires that all ranks were given the same command and options, before rank 0 decides.
/// Collective. Errors: Usage, naming the rank that differs.
void require_asked_alike(const comm::World& world, const Invocation& invocation);

/// What is to be told before the run starts.
[[nodiscard]] std::vector<std::string> notices_of(const OpenedRun& run,
                                                  const Invocation& invocation);

/// Writes config.toml into the directory of a new run, if it has one.
void record_options(const OpenedRun& run);

/// Whether the run needs more ranks than there are, so that a launcher must start them.
[[nodiscard]] bool must_launch(const run::Run& config, const comm::World& world);

/// Opens the data and resolves the options. The run directory with config.toml is created last, so
/// that an error leaves no directory behind; it is not created if a launcher must start the ranks
/// first. Collective, like the next two.
[[nodiscard]] OpenedRun open_new_run(const Invocation& invocation, const comm::World& world);

/// The run at --restore-path with the options that may change. Additional errors: Usage without a
/// path, Io without config.toml and checkpoints.
[[nodiscard]] OpenedRun open_restored_run(const Invocation& invocation, const comm::World& world);

/// A training that is only checked, as open_new_run() would, for any number of ranks in one
/// process: nothing is created, and the run directory has no name. Collective.
[[nodiscard]] OpenedRun open_checked_run(const Invocation& invocation, const comm::World& world);

/// The run or checkpoint at --restore-path, for validation. The configuration comes from its newest
/// checkpoint. Without a path it comes from the options, and the weights are untrained. Only the
/// validation images are opened. Collective.
[[nodiscard]] OpenedRun open_validated_run(const Invocation& invocation, const comm::World& world);

/// Adds the network that a run recorded to the options of its config.toml, if a file gave it.
/// Errors: Checkpoint.
void add_recorded_network(Patch& options, const std::filesystem::path& run);

/// What is known of the data set without its files, from the options and what was recorded.
[[nodiscard]] DatasetFacts recorded_facts(const Patch& options,
                                          const std::optional<training::NetworkFacts>& recorded);

/// The network of a checkpoint, without its data.
struct RecordedNetwork {
  run::Run config;
  models::Graph graph;
};
/// With the options `given` that only change how its weights are used, as for a validation. Errors:
/// Checkpoint, if an older millrace wrote it without what only the data set knew, and it is not
/// what the data set has; Usage.
[[nodiscard]] RecordedNetwork network_of(const io::CheckpointReader& checkpoint,
                                         const Patch& given = {});

/// How a checkpoint's validation prepares images, where an older millrace did not record it: from
/// the training images in --data-dir, recorded or given. Errors: Usage without one, Data.
[[nodiscard]] run::Preparation measured_preparation(const io::CheckpointReader& checkpoint,
                                                    const Patch& given);

}  // namespace millrace::cli
