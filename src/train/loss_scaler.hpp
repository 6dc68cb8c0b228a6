// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "run/run.hpp"

namespace millrace::training {

/// Number of consecutive steps without an update that ends a run: no scale would help.
inline constexpr std::int64_t kMaxSkippedInRow = 20;

/// The state of the loss scaling; part of a checkpoint.
struct ScalingState {
  double scale = 1.0;
  std::int64_t good_steps = 0;      ///< updates since the scale last changed
  std::int64_t skipped = 0;         ///< steps of the whole run without an update
  std::int64_t skipped_in_row = 0;  ///< steps since the last update
  friend bool operator==(const ScalingState&, const ScalingState&) = default;
};

[[nodiscard]] ScalingState first_scaling(const run::LossScaling& scaling);

/// The state after a step. A dynamic scale is halved after non-finite gradients, down to 1, and
/// doubled after `growth_interval` updates in a row, as long as float32 can hold it. With a static
/// scale only the counters change.
[[nodiscard]] ScalingState after_step(const run::LossScaling& scaling, const ScalingState& before,
                                      bool skipped);

[[nodiscard]] std::string to_json(const ScalingState& state);
/// The inverse; an empty text gives the state at the start of a run. Error(Checkpoint) for anything
/// else.
[[nodiscard]] ScalingState parse_scaling(std::string_view text, const run::LossScaling& scaling);

}  // namespace millrace::training
