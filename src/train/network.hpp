// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/graph.hpp"
#include "train/config.hpp"

namespace millrace::train {

/// The network that a configuration trains. Parameters that its filters leave out are frozen.
/// Errors: Config, as models::build_model and models::train_only.
[[nodiscard]] models::Graph network_of(const TrainConfig& config);

/// How the training compiles its stages: what it and its plans have in common. The direction of the
/// backward pass follows from the schedule.
[[nodiscard]] pipeline::ProgramOptions training_program(const TrainConfig& config);

}  // namespace millrace::train
