// SPDX-License-Identifier: Apache-2.0
//
// What the executor does with a stage, one call at a time, and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.hpp"
#include "device/arena.hpp"
#include "pipeline/stage.hpp"

namespace millrace::pipeline {

/// Copies images and labels to the buffers of the program.
inline void load(BoundProgram& program, const RunContext& context, const io::Batch& batch) {
  const device::ExecutionSpace space;
  const auto small = device::host_buffer(static_cast<std::size_t>(Stage::small_bytes(program)));
  Stage::load(space, program, context, batch, small.get());
  device::fence(space);
}
/// The same, for images that need no scaling or mixing.
inline void load(BoundProgram& program, const RunContext& context,
                 std::span<const std::byte> images, std::span<const std::int32_t> labels) {
  io::Batch batch;
  batch.images = images;
  batch.labels = labels;
  load(program, context, batch);
}

/// Queues a whole phase of a program without exchanges.
inline void run_phase(BoundProgram& program, const device::ExecutionSpace& space, Phase phase,
                      const RunContext& context) {
  MILLRACE_ASSERT(program.parts(phase) == 1);
  program.run_part(space, phase, 0, context);
}

/// The losses of the micro-batch in this slot.
inline MicroBatchMetrics metrics(const Stage& stage, const BoundProgram& program,
                                 const RunContext& context) {
  const device::ExecutionSpace space;
  const auto losses = device::host_buffer(static_cast<std::size_t>(Stage::loss_bytes(program)));
  Stage::queue_losses(space, program, context, losses.get());
  device::fence(space);
  return stage.metrics(program, losses.get());
}

}  // namespace millrace::pipeline
