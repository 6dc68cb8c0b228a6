// SPDX-License-Identifier: Apache-2.0
#include "pipeline/host_places.hpp"

#include "device/arena.hpp"
#include "device/queues.hpp"

namespace millrace::pipeline {
namespace {

bool has_loss(const StageRun& run) { return run.program->program().loss.valid(); }

}  // namespace

HostPlaces::HostPlaces(const StageRun& run, std::int32_t micro_batches)
    : small_bytes_(device::kHasQueues ? Stage::small_bytes(*run.program) : 0),
      loss_bytes_(has_loss(run) ? Stage::loss_bytes(*run.program) : 0),
      losses_at_(micro_batches * small_bytes_) {
  const std::int64_t bytes = losses_at_ + micro_batches * loss_bytes_;
  if (bytes > 0) memory_ = device::host_buffer(static_cast<std::size_t>(bytes));
}

}  // namespace millrace::pipeline
