// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pipeline/schedule/schedule.hpp"

namespace millrace::pipeline {

/// Records which compute actions are done, and tells which others are ready.
class Readiness {
 public:
  using Time = std::optional<std::int64_t>;

  Readiness(std::int32_t stages, std::int32_t micro_batches, std::span<const Link> links);

  /// When everything was done that a compute action needs: the forwards (backwards) of the stages
  /// that it reads from, and the earlier actions of its micro-batch on its own stage. Nothing while
  /// some of it is not done.
  [[nodiscard]] Time ready(const Action& action) const;
  [[nodiscard]] bool is_ready(const Action& action) const { return ready(action).has_value(); }
  /// For a kind other than Backward.
  [[nodiscard]] bool is_done(ActionKind kind, std::int32_t stage, std::int32_t micro_batch) const {
    return end_of(kind, stage, micro_batch).has_value();
  }
  void finish(const Action& action, std::int64_t end = 0);

  /// Stages whose activations `stage` reads.
  [[nodiscard]] std::span<const std::int32_t> before(std::int32_t stage) const {
    return before_[static_cast<std::size_t>(stage)];
  }
  /// Stages whose gradients `stage` reads.
  [[nodiscard]] std::span<const std::int32_t> after(std::int32_t stage) const {
    return after_[static_cast<std::size_t>(stage)];
  }
  /// Stages whose backward comes before that of `stage`: all that read its activations, even if no
  /// gradient comes back from them. So a stage's output is kept until its readers are done, and the
  /// order of a schedule does not depend on which parameters are trained.
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
  /// When each part of a micro-batch's work on a stage was done.
  struct Done {
    Time forward;
    Time input;
    Time weight;
  };
  [[nodiscard]] const Time& end_of(ActionKind kind, std::int32_t stage,
                                   std::int32_t micro_batch) const;

  std::vector<Done> done_;
};

/// Walks through lists of compute actions in order of time. Forward, input gradient and weight
/// gradient take one unit of time each. If several queues share a device, it takes the action that
/// can begin first; among equals, backward before forward, then the smaller micro-batch. Calls
/// `visit` in order of begin. Returns false if the queues block each other.
bool walk(std::span<const std::vector<Action>> queues,
          std::span<const std::int32_t> device_of_queue, std::int32_t stages,
          std::int32_t micro_batches, std::span<const Link> links,
          const std::function<void(std::size_t queue, const Action&)>& visit);

}  // namespace millrace::pipeline
