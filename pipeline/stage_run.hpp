// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/loss_function.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/recording.hpp"
#include "pipeline/stage.hpp"

namespace millrace::pipeline {

/// One stage of one replica, on this process.
struct LocalStage {
  std::int32_t replica = 0;
  std::int32_t stage = 0;
  Stage* state = nullptr;  ///< its parameters and programs
};

/// Takes the logits of a micro-batch, a row of float32 for each of its samples, padding included.
/// `at` is its index in Executor::metrics().
using TakeLogits = std::function<void(std::int64_t at, std::span<const float> logits)>;

/// Numbers of a training step that depend on how many steps before it were skipped.
struct StepNumbers {
  float loss_scaling = 1.0f;
  double average_decay = 0.0;  ///< where moving averages are kept
  /// All but the number of the step and the scale of gradients, which the executor sets.
  ops::Update update = {};
};

/// Settings of a run of a schedule: a training step or a part of an evaluation.
struct StepSettings : StepNumbers {
  std::uint64_t seed = 0;      ///< of the run; random masks depend on it
  std::int64_t iteration = 0;  ///< number of the step; random masks depend on it
  double clip_norm = 0.0;      ///< largest norm of all gradients together; 0: any
  /// The numbers if the step before, of which the host does not know yet, was skipped.
  StepNumbers after_skip = {};
  bool check_exceptions = false;  ///< check results of every kernel for non-finite numbers
  bool time_kernels = false;      ///< record when every kernel runs
  TakeLogits logits = {};         ///< called after every forward pass that ends with the loss
  /// The weights are those of the executor's last run, so that they are packed already. Only for
  /// stages with a single program: two programs share their workspace.
  bool weights_packed = false;
  std::span<ClassCounts> by_class = {};  ///< evaluation: to be added to; empty: not counted
  const LossFunction* loss = nullptr;    ///< in place of the network's; null: that
};

/// The phase of an action in which its kernels may have to wait for other replicas.
[[nodiscard]] std::optional<Phase> exchanging_phase(ActionKind kind);

/// A unit in an executor: the program that runs, and where its micro-batches lie. Micro-batch m
/// uses stash slot m % slots.stash, and the other slots likewise.
struct StageRun {
  LocalStage unit;
  BoundProgram* program = nullptr;  ///< of training or of evaluation
  Slots slots;
  std::int32_t replicas = 1;
  std::int32_t span = 1;  ///< replicas that share batch statistics
  std::uint64_t seed = 0;
  std::int64_t iteration = 0;
  /// Of the loss of StepSettings by micro-batch, from its forward pass on.
  struct OwnLoss {
    double value = 0.0;
    std::vector<float> gradient;  ///< by the logits, scaled; empty in evaluations
  };
  std::vector<OwnLoss> own_losses = {};

  [[nodiscard]] RunContext context(std::int32_t micro_batch) const;
  [[nodiscard]] std::byte* address(BufferId buffer, std::int32_t micro_batch) const {
    return program->address(buffer, context(micro_batch));
  }
  /// The parts of the phases that an action runs; 0 if it runs none.
  [[nodiscard]] std::size_t parts(ActionKind kind) const;
  void begin_step(const device::ExecutionSpace& space, const StepSettings& settings);
  /// Asks for the loss of the micro-batch, whose labels are in `batch`, after its forward pass.
  void ask_for_loss(const StepSettings& settings, const io::Batch& batch, std::int32_t micro_batch);
  /// Runs a part of a phase; records its kernels if settings.time_kernels is set. Errors: Numeric
  /// with the first op whose result is not finite, if settings.check_exceptions is set.
  void run_part(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                std::int32_t micro_batch, const StepSettings& settings, Recording& recording) const;
};

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

/// The units of a process as `plan` runs them: with the training programs, or the evaluation
/// programs if it has no backward pass. Errors: Config if the span of batch normalization does not
/// divide the number of replicas.
[[nodiscard]] std::vector<StageRun> stage_runs(const Graph& graph, const PipelinePlan& plan,
                                               std::span<const LocalStage> units);

/// Index of a stage of a replica among `runs`, which must be there.
[[nodiscard]] std::size_t find_run(std::span<const StageRun> runs, std::int32_t replica,
                                   std::int32_t stage);

}  // namespace millrace::pipeline
