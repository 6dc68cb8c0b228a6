// SPDX-License-Identifier: Apache-2.0
//
// From the gradients of a step to new weights, for the stages of one process.
//
// Gradients are added in a fixed order, so that layouts with equally many replicas have the same
// bits:
//
//   1. over the micro-batches of a replica in ascending order, by the kernels of BackwardWeight;
//      every schedule runs them in that order (schedule.hpp)
//   2. over the replicas in ascending order, by AllReduce, which runs beside other work up to the
//      action Update of a stage: for a bucket of gradients from the part of the last backward pass
//      on that completes it, for all others from the action Reduce on
//   3. the squares for clipping, tensor by tensor, in the order of the graph's parameters
//
// All weights are updated together at the end of the step. When all stages of the process have
// their sums, the processes agree whether all sums are finite, and with clipping their norm; then
// either all of them update or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "device/arena.hpp"
#include "pipeline/all_reduce.hpp"
#include "pipeline/recording.hpp"
#include "pipeline/stage_run.hpp"

namespace millrace::pipeline {

class WeightUpdate {
 public:
  /// All arguments must outlive this. A plan without a backward pass has nothing to update.
  WeightUpdate(const Graph& graph, const PipelinePlan& plan, std::span<const StageRun> runs,
               Recording& recording, DeviceSpans& spans);

  /// Bytes of the scratch memory of the sums.
  [[nodiscard]] std::int64_t bytes() const;
  /// The part of it for a unit.
  [[nodiscard]] std::int64_t bytes(std::size_t unit) const;
  /// Bytes of the messages to and from other processes.
  [[nodiscard]] std::int64_t message_bytes() const;
  /// Number of message tags from `first_tag` of bind() on.
  [[nodiscard]] int tags() const;
  /// Sets the scratch memory. The stages must be bound first.
  void bind(std::byte* memory, comm::Transport& transport, const comm::World& world, int first_tag);

  /// Begins a step. `turn` is 0 or 1: what its search finds is kept until the next step of the same
  /// turn. A step that begins before the host knows whether the one before was skipped
  /// is `ahead` of it.
  void begin_step(const device::ExecutionSpace& space, const StepSettings& settings,
                  std::size_t turn, bool ahead);
  /// Begins to add up, over the replicas, those gradients of a unit that are complete after so many
  /// calls of the last micro-batch's backward pass.
  void start_complete(std::size_t unit, std::size_t calls);
  /// Action Reduce: begins to add up all others, and the running sums.
  void start(std::size_t unit);
  /// Whether sums are being added up. If so, call advance() while waiting for other things.
  [[nodiscard]] bool adding() const { return adding_; }
  /// Does what is possible without waiting. While a process waits anyway, this counts as waiting.
  void advance();
  /// Action Update: waits for the sums of a unit and queues a check of this replica's part of them.
  /// The weights change in finish(). Errors: Numeric, with the first parameter whose sum is not
  /// finite, if settings.check_exceptions is set.
  void await(std::size_t unit, const StepSettings& settings);
  /// Completes all Update actions. Runs after all entries of this process, so that no process waits
  /// for a message from a process that is waiting here. Returns false if a sum was not finite on
  /// any rank, or the norm for clipping: nothing was updated. Collective. Errors: Numeric for the
  /// norm, if settings.check_exceptions is set.
  [[nodiscard]] bool finish(const StepSettings& settings);
  /// Where one process decides alone, and without the norm, in place of finish(): queues the
  /// update, which its kernels leave out if a sum is not finite.
  void queue_if_finite();
  /// Whether the last step of a turn found this process' sums finite, once its work is done.
  [[nodiscard]] bool found_finite(std::size_t turn) const;
  /// After finish() returned false: the name of the first parameter of the network whose sum is not
  /// finite on any rank, or words for the norm; "" if all are finite. Collective.
  [[nodiscard]] std::string first_not_finite() const;
  /// By what the update of the last step multiplied the sums of gradients.
  [[nodiscard]] float last_scale() const { return last_scale_; }

 private:
  struct Sums {
    const StageRun* run;
    std::vector<AllReduce> parts;      ///< of buckets of gradients, then of running sums
    std::optional<AllGather> weights;  ///< if replicas divide the update of a stage
    std::size_t started = 0;           ///< parts of this step
    std::size_t entry = 0;             ///< its Update action
    std::byte* findings = nullptr;     ///< of the checks of both turns, on the host
    [[nodiscard]] Parameters& parameters() const { return run->unit.state->parameters(); }
  };

  /// Starts parts up to this one.
  void start(Sums& sums, std::size_t parts);
  /// Does what is possible without waiting; true once all sums of a unit that were started are
  /// there.
  [[nodiscard]] bool advance(Sums& sums);
  /// The replica that the sums of a unit wait for, or -1.
  [[nodiscard]] static std::int32_t awaited(const Sums& sums);
  /// The first parameter with a sum that is not finite in this process' part of the sums.
  [[nodiscard]] std::optional<models::ParameterId> first_not_finite(const Sums& sums) const;
  /// The ranks of the unit's stage, by replica.
  [[nodiscard]] std::vector<int> ranks_of(const Sums& sums) const;
  /// Whether the sums of this process are finite. Waits for the checks.
  [[nodiscard]] bool all_finite() const;
  /// The numbers of a step, with the scale of gradients that are not clipped.
  [[nodiscard]] ops::StepValues values_of(const StepSettings& settings,
                                          const StepNumbers& numbers) const;
  /// One over the loss scaling and the number of micro-batches: may not fit in float.
  [[nodiscard]] double gradient_scale(const StepNumbers& numbers) const;
  /// Scales the gradients of the step down to the norm. Returns false if that is not finite.
  [[nodiscard]] bool clip(const StepSettings& settings);
  [[nodiscard]] double norm_of_gradients();
  void share_weights();
  [[nodiscard]] std::byte* finding(const Sums& sums, std::size_t turn) const {
    return sums.findings + turn * device::kAlignment;
  }

  const Graph* graph_;
  const PipelinePlan* plan_;
  Recording* recording_;
  DeviceSpans* spans_;
  std::shared_ptr<std::byte> findings_;
  std::vector<Sums> sums_;  ///< by unit
  comm::Transport* transport_ = nullptr;
  const comm::World* world_ = nullptr;
  const device::ExecutionSpace* space_ = nullptr;
  std::size_t turn_ = 0;  ///< of the step
  float last_scale_ = 1.0f;
  bool adding_ = false;          ///< whether sums are in progress
  bool norm_is_finite_ = true;   ///< of the last step
  std::vector<double> squares_;  ///< of the norms of gradients, by parameter
};

}  // namespace millrace::pipeline
