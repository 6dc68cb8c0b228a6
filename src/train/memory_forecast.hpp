// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "comm/world.hpp"
#include "train/config.hpp"
#include "train/session.hpp"
#include "train/trainer.hpp"

namespace millrace::train {

/// The memory that a process will need for a training, in bytes, before it allocates it.
struct MemoryForecast {
  std::int64_t reading = 0;  ///< for images: batches, and what the data set uses to produce them
  std::int64_t peak = 0;     ///< the process' peak: memory in use now, and everything to come
};
/// `averages`: whether this process makes averages of checkpoints at the end.
[[nodiscard]] MemoryForecast forecast_memory(const Session& session, const TrainConfig& config,
                                             const TrainInputs& inputs, const comm::World& world,
                                             bool averages);

/// Collective. Errors: Config if the training does not fit into the free memory of a machine, with
/// a batch size that does: memory grows with the batch.
void require_memory(const MemoryForecast& forecast, const TrainConfig& config,
                    const comm::World& world);

}  // namespace millrace::train
