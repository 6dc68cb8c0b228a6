// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "train/config.hpp"

namespace millrace::train {

/// Numbers of the devices assigned to `rank`, without duplicates, ascending; none: any device.
[[nodiscard]] std::vector<int> device_numbers_of(const TrainConfig& config, int rank);

/// The GPU of that rank, for device::Environment; -1: any. Errors: Config if several are assigned
/// to it, as a process uses one.
[[nodiscard]] int gpu_of(const TrainConfig& config, int rank);

}  // namespace millrace::train
