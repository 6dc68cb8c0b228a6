// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "train/config.hpp"

namespace millrace::train {

/// Numbers of the devices that `rank` was told to compute on, each once, ascending; none: any.
[[nodiscard]] std::vector<int> device_numbers_of(const TrainConfig& config, int rank);

/// The GPU of that rank, for device::Environment; -1: any. Errors: Config, when it was told to
/// compute on more than one, which a process cannot.
[[nodiscard]] int gpu_of(const TrainConfig& config, int rank);

}  // namespace millrace::train
