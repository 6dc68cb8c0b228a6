// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "comm/world.hpp"
#include "io/data/dataset.hpp"
#include "partition/cost.hpp"
#include "pipeline/schedule/simulate.hpp"
#include "run/run.hpp"

namespace millrace::training {

/// The costs of a network's ops per micro-batch, with seconds measured on this device: medians of
/// several passes over the whole network, with split backward passes. Needs a device::Environment.
[[nodiscard]] std::vector<partition::OpCost> profiled_costs(const run::Run& config);

/// Seconds of the stages of a run, measured without running it: a process plays the part of a rank
/// alone, with messages that are there at once. Each part executes its own list of actions on its
/// own memory, so that caches hold what they hold in the run; nothing is known of waiting and of
/// messages. If `world` has the ranks of the run, all play their parts at the same time, as ranks
/// that work side by side slow each other; a machine whose cores can compute for `at_once` of them
/// and has more counts the time that cores work for each. Otherwise this process plays those of the
/// first replica one after the other. A joined backward counts as `backward_input`. Collective;
/// needs a device::Environment and the memory of a part. Errors: Config, as Session.
[[nodiscard]] std::vector<pipeline::StageCost> measured_costs(
    const run::Run& config, const std::shared_ptr<const io::Dataset>& dataset,
    const comm::World& world, int at_once);

}  // namespace millrace::training
