// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "comm/world.hpp"
#include "io/data/dataset.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "train/config.hpp"

namespace millrace::train {

/// Seconds of the stages of a run, measured without running it: this process plays the part of one
/// rank of the first replica after the other, alone, with messages that are there at once. Each
/// part executes its own list of actions on its own memory, so that caches hold what they hold in
/// the run; nothing is known of waiting, of messages, or of what ranks take from each other. A
/// joined backward counts as `backward_input`. `world` must have one rank; needs a
/// device::Environment and as much memory as the largest part. Errors: Config, as Session.
[[nodiscard]] std::vector<pipeline::StageCost> rehearsed_costs(
    const TrainConfig& config, const std::shared_ptr<const io::Dataset>& dataset,
    const comm::World& world);

}  // namespace millrace::train
