// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "train/config.hpp"

namespace millrace::train {

/// Steps in a row without an update that end a run: no scale helps any more.
inline constexpr std::int64_t kMaxSkippedInRow = 20;

/// How far the scaling of the loss has come; part of a checkpoint.
struct ScalingState {
  double scale = 1.0;
  std::int64_t good_steps = 0;      ///< updates since the scale last changed
  std::int64_t skipped = 0;         ///< steps of the whole run that updated nothing
  std::int64_t skipped_in_row = 0;  ///< of them, those since the last update
  friend bool operator==(const ScalingState&, const ScalingState&) = default;
};

[[nodiscard]] ScalingState first_scaling(const LossScaling& scaling);

/// What a step makes of the state. Dynamic scales halve when gradients were not finite, not below
/// one, and double after `growth_interval` updates in a row where float32 can hold the double;
/// static ones only count.
[[nodiscard]] ScalingState after_step(const LossScaling& scaling, const ScalingState& before,
                                      bool skipped);

[[nodiscard]] std::string to_json(const ScalingState& state);
/// The inverse; an empty text is the state of a run's beginning. Error(Checkpoint) for anything
/// else.
[[nodiscard]] ScalingState parse_scaling(std::string_view text, const LossScaling& scaling);

}  // namespace millrace::train
