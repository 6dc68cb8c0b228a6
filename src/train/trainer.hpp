// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "io/checkpoint.hpp"
#include "io/data/dataset.hpp"
#include "io/foreign_files.hpp"
#include "pipeline/stage.hpp"
#include "run/run.hpp"
#include "train/metrics_log.hpp"
#include "train/summaries.hpp"
#include "train/train_run.hpp"

namespace millrace::training {

/// How a program tells its users about a run.
struct Voice {
  /// Messages name fields of a run `like-this`: puts what the user would type in their place. None:
  /// they stay as they are.
  std::function<std::string(std::string)> spell = {};
  /// The command that goes on after a run, which may be finished. None: nothing is said about it.
  std::function<std::string(const std::filesystem::path& run, bool finished)> next = {};
};

/// The inputs of a training besides its configuration.
struct TrainInputs {
  std::shared_ptr<const io::Dataset> train;
  std::shared_ptr<const io::Dataset> validation;
  std::string command_line;
  std::vector<std::string> notices;
  std::vector<std::string> details = {};  ///< what `verbose` tells besides
  Voice voice = {};
  OpenSummaries summaries = nullptr;  ///< a run with `enable-tensorboard` needs it
  io::ForeignFiles files = {};        ///< for initial weights in a network file
  /// Asked between two updates for the signal that the run shall stop for; 0: it goes on. None: it
  /// always does.
  std::function<int()> stop_asked = {};
  /// Images of the whole set of which `validation` has a part; 0: it has all.
  std::int64_t validation_set_size = 0;
  /// None of them throws. With tell(), nothing is printed. `cancelled` is not asked.
  Callbacks callbacks = {};
};

/// All functions are collective: every rank of `world` calls them with the same configuration. Rank
/// 0 prints and writes for all. They need a device::Environment.

/// Trains from the initial weights. Errors: Numeric, with the iteration and the directory of the
/// checkpoints, if loss, gradients or batch statistics were not finite for kMaxSkippedInRow steps
/// in a row, or weights are not finite. Io if the run directory cannot be written.
[[nodiscard]] Outcome train(const run::Run& config, const TrainInputs& inputs,
                            const comm::World& world);

/// Continues the run in config.run_directory from its newest valid checkpoint, bit for bit
/// unless kernels may be nondeterministic.
[[nodiscard]] Outcome restore(const run::Run& config, const TrainInputs& inputs,
                              const comm::World& world);

/// What a validation found of one checkpoint, and of each class of the network.
using ValidationReport = std::function<void(const io::CheckpointHeader&, const ValidationResult&,
                                            std::span<const pipeline::ClassCounts>)>;

/// Validates the checkpoint in `directory`, or all checkpoints of a run, or without a directory the
/// untrained weights. Calls `report` after each, on every rank; with tell(), nothing is printed.
/// Errors: Numeric if a loss is not finite.
void validate(const run::Run& config, const comm::World& world,
              std::shared_ptr<const io::Dataset> validation, const std::filesystem::path& directory,
              const ValidationReport& report, const io::ForeignFiles& files = {},
              const std::function<void(std::string_view)>& tell = {});

}  // namespace millrace::training
