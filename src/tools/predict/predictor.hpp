// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/world.hpp"
#include "io/checkpoint.hpp"
#include "io/data/dataset.hpp"
#include "run/run.hpp"
#include "train/session.hpp"

namespace millrace::training {

/// Runs the network of a checkpoint forward on all images of a set, in their order, as a validation
/// does, and passes its logits to `take`. Needs a device::Environment. Errors: as Session::load().
void predict(const run::Run& config, const comm::World& world,
             const std::shared_ptr<const io::Dataset>& images,
             const io::CheckpointReader& checkpoint, const TakeLogits& take);

}  // namespace millrace::training
