// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pipeline/schedule.hpp"

namespace millrace::pipeline {

/// Which compute actions are done, and what the others still wait for. Shared by everything that
/// walks through a schedule.
class Progress {
 public:
  Progress(std::int32_t stages, std::int32_t micro_batches, std::span<const Link> links);

  /// Whether everything that a compute action needs is done: the forwards (backwards) of the stages
  /// that feed it, and what comes before it on its own stage.
  [[nodiscard]] bool is_ready(const Action& action) const;
  [[nodiscard]] bool is_done(ActionKind kind, std::int32_t stage, std::int32_t micro_batch) const;
  void finish(const Action& action);

  /// Stages whose activations `stage` reads, and those whose gradients.
  [[nodiscard]] std::span<const std::int32_t> before(std::int32_t stage) const {
    return before_[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] std::span<const std::int32_t> after(std::int32_t stage) const {
    return after_[static_cast<std::size_t>(stage)];
  }
  /// Stages whose backward comes before that of `stage`: those that read its activations, too,
  /// when no gradient comes back from them. What a stage made stays until they are done with it,
  /// and a schedule is in the same order whatever is trained.
  [[nodiscard]] std::span<const std::int32_t> behind(std::int32_t stage) const {
    return behind_[static_cast<std::size_t>(stage)];
  }

 private:
  [[nodiscard]] std::size_t at(std::int32_t stage, std::int32_t micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }

  std::int32_t micro_batches_;
  std::vector<std::vector<std::int32_t>> before_;
  std::vector<std::vector<std::int32_t>> after_;
  std::vector<std::vector<std::int32_t>> behind_;
  std::vector<std::uint8_t> done_;  ///< bits: forward, input gradient, weight gradient
};

/// Walks lists of compute actions in order of time, each action lasting as long as its count of
/// thirds of a stage (forward, input gradient, weight gradient: one each). Several queues may share
/// a device, which then takes what can begin first; of equals backward before forward, then the
/// smaller micro-batch. Calls `visit` in order of begin. Returns false when it got stuck.
bool walk(std::span<const std::vector<Action>> queues,
          std::span<const std::int32_t> device_of_queue, std::int32_t stages,
          std::int32_t micro_batches, std::span<const Link> links,
          const std::function<void(std::size_t queue, const Action&)>& visit);

}  // namespace millrace::pipeline
