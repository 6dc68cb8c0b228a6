// SPDX-License-Identifier: Apache-2.0
#include "train/loss_scaler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "core/json.hpp"

namespace millrace::training {
namespace {

constexpr double kHighestScale = static_cast<double>(std::numeric_limits<float>::max());

bool plausible(const ScalingState& state) {
  return std::isfinite(state.scale) && state.scale > 0.0 && state.good_steps >= 0 &&
         state.skipped >= 0 && state.skipped_in_row >= 0;
}

}  // namespace

ScalingState first_scaling(const run::LossScaling& scaling) { return {.scale = scaling.initial}; }

ScalingState after_step(const run::LossScaling& scaling, const ScalingState& before, bool skipped) {
  ScalingState state = before;
  state.skipped += skipped ? 1 : 0;
  state.skipped_in_row = skipped ? before.skipped_in_row + 1 : 0;
  if (scaling.kind == run::ScalingKind::Static) return state;
  state.good_steps = skipped ? 0 : before.good_steps + 1;
  if (skipped) state.scale = std::max(before.scale / 2.0, std::min(before.scale, 1.0));
  if (state.good_steps < scaling.growth_interval) return state;
  state.good_steps = 0;
  if (2.0 * before.scale <= kHighestScale) state.scale = 2.0 * before.scale;
  return state;
}

std::string to_json(const ScalingState& state) {
  return Json::object({{"scale", state.scale},
                       {"good_steps", state.good_steps},
                       {"skipped", state.skipped},
                       {"skipped_in_row", state.skipped_in_row}})
      .dump();
}

ScalingState parse_scaling(std::string_view text, const run::LossScaling& scaling) {
  if (text.empty()) return first_scaling(scaling);
  try {
    const Json json = Json::parse(text);
    const ScalingState state{.scale = json.at("scale").as_double(),
                             .good_steps = json.at("good_steps").as_int64(),
                             .skipped = json.at("skipped").as_int64(),
                             .skipped_in_row = json.at("skipped_in_row").as_int64()};
    if (plausible(state)) return state;
  } catch (const JsonError&) {
    // Reported below.
  }
  fail(ErrorKind::Checkpoint,
       "the state of the loss scaling in the checkpoint is '{}'; expected an object with a "
       "positive scale, good_steps, skipped and skipped_in_row",
       text);
}

}  // namespace millrace::training
