// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "run/run.hpp"

namespace millrace::training {

/// What is due after a weight update.
struct Due {
  bool log = false;
  bool checkpoint = false;
  bool validate = false;
  bool snapshot = false;  ///< in memory, unless a checkpoint is
  friend bool operator==(const Due&, const Due&) = default;
};

/// What is due after `done` updates of the run: every multiple of the intervals, and always the
/// last update. Checkpoints by the clock come in addition. With ValidationMode::End the validation
/// points are saved instead of validated. done = 0 stands for the checkpoint of the initial
/// weights, before the first update.
[[nodiscard]] Due due_after(const run::Run& config, std::int64_t done);

/// The epoch in which this iteration begins.
[[nodiscard]] std::int64_t epoch_of(const run::Run& config, std::int64_t iteration);

/// Number of checkpoints due from iteration `first` >= 0 to the last one, inclusive.
[[nodiscard]] std::int64_t checkpoints_from(const run::Run& config, std::int64_t first);

/// Why a run ends before its last update, after these validations: top-1 accuracies in percent by
/// iteration. Empty if it goes on. The same after a restart, which knows them all.
[[nodiscard]] std::string reason_to_stop(const run::Run& config,
                                         const std::map<std::int64_t, double>& accuracies);

/// Whether a checkpoint of this iteration is validated at the end of the training (mode End): all
/// are, but the untrained weights and those that were saved because the run was interrupted.
[[nodiscard]] bool is_validated_saved(const run::Run& config, std::int64_t done);

/// Whether this iteration is validated, now (mode All) or at the end of the training (mode End).
[[nodiscard]] bool is_validation_point(const run::Run& config, std::int64_t done);

}  // namespace millrace::training
