// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "train/config.hpp"

namespace millrace::train {

/// What follows a weight update.
struct Due {
  bool log = false;
  bool checkpoint = false;
  bool validate = false;
  friend bool operator==(const Due&, const Due&) = default;
};

/// What is due when `done` updates of the run are behind: every multiple of the intervals, and the
/// last update always. What the clock says comes on top. With ValidationMode::End the validation
/// points are saved instead of validated. done = 0 asks for the checkpoint of the initial weights,
/// before the first update.
[[nodiscard]] Due due_after(const TrainConfig& config, std::int64_t done);

/// How many checkpoints are due from iteration `first` >= 0 to the last one, both included.
[[nodiscard]] std::int64_t checkpoints_from(const TrainConfig& config, std::int64_t first);

/// Whether validation belongs to this iteration, now (mode All) or once training is over (mode
/// End).
[[nodiscard]] bool is_validation_point(const TrainConfig& config, std::int64_t done);

}  // namespace millrace::train
