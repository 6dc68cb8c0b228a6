// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "comm/world.hpp"

namespace millrace::train {

class Session;
struct TrainConfig;
struct TrainInputs;

/// Resident memory of this process in bytes: now, and its peak. 0 if the system does not say.
[[nodiscard]] std::int64_t resident_bytes();
[[nodiscard]] std::int64_t peak_resident_bytes();
/// Memory of the machine that is still available, in bytes; 0 if unknown.
[[nodiscard]] std::int64_t available_bytes();
/// Total memory of the machine in bytes; 0 if unknown.
[[nodiscard]] std::int64_t machine_bytes();

/// Memory that HDF5 uses for itself and for the data sets of an open file; measured.
[[nodiscard]] constexpr std::int64_t open_checkpoint_bytes(std::int64_t tensors) {
  return 4'000'000 + 32'000 * tensors;
}

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
