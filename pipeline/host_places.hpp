// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "pipeline/stage_run.hpp"

namespace millrace::pipeline {

/// Host memory of a unit through which its small inputs and its losses pass: a place for each
/// micro-batch of a step, so that nobody waits for the device within a step.
class HostPlaces {
 public:
  HostPlaces(const StageRun& run, std::int32_t micro_batches);

  /// As Stage::load() and Stage::queue_losses() need it.
  [[nodiscard]] std::byte* small(std::int32_t micro_batch) const {
    return memory_.get() + micro_batch * small_bytes_;
  }
  [[nodiscard]] std::byte* losses(std::int32_t micro_batch) const {
    return memory_.get() + losses_at_ + micro_batch * loss_bytes_;
  }

 private:
  std::int64_t small_bytes_;
  std::int64_t loss_bytes_;
  std::int64_t losses_at_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace millrace::pipeline
