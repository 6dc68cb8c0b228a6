// SPDX-License-Identifier: Apache-2.0
//
// Runs a schedule. One Executor runs the part of one process: the stages of all its devices, over
// all replicas that these belong to. It walks the list of its rank (lists_by_rank). Around it:
//
//   stage_run         which program of a stage runs, the slots of its micro-batches, and
//                     host memory for what they read and return
//   stage_messages    what goes to and comes from the stages before and after
//   statistics_teams  batch normalization over replicas
//   weight_update     from gradients to new weights: the order of sums, clipping, agreement
//   recording         when each action ran, also by the clock of a device, and which one runs now
//
// Life of a micro-batch in a stage: before its forward the receives of its inputs are posted in its
// stash slot (m % slots). The slot keeps what the backward pass reads (program.hpp lists it). After
// the last backward action of the micro-batch free_slot() gives the slot to the next one.
//
// Nothing here allocates, looks up a name or logs during a step. Where kernels wait in a queue, a
// step waits for the device once, after its last kernel; messages and inputs take their places in
// the queue (comm/transport.hpp, device/queues.hpp). Only the agreement whether all sums are finite
// needs an answer before. Where one process has the whole network, it needs none: the kernels of
// the update read on the device what was found, and the host may queue a step ahead of the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"
#include "io/data/loader.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/recording.hpp"
#include "pipeline/stage_messages.hpp"
#include "pipeline/stage_run.hpp"
#include "pipeline/statistics_teams.hpp"
#include "pipeline/weight_update.hpp"

namespace millrace::pipeline {

class Executor {
 public:
  /// `units` are those of this rank, by replica and stage. They and `plan` must outlive the
  /// executor. A forward-only plan runs the evaluation programs. Errors: Config if the span of
  /// batch normalization does not divide the number of replicas.
  Executor(const Graph& graph, const PipelinePlan& plan, std::span<const LocalStage> units,
           int rank);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Bytes of scratch memory for sums over replicas.
  [[nodiscard]] std::int64_t bytes() const { return update_.bytes(); }
  /// Of these, the bytes for one unit.
  [[nodiscard]] std::int64_t bytes(std::size_t unit) const { return update_.bytes(unit); }
  /// Bytes of the messages to and from other processes; those of batch statistics over replicas,
  /// which are a few kilobytes, are not counted.
  [[nodiscard]] std::int64_t message_bytes() const;
  /// Sets the scratch memory. The stages must be bound first. `world` is used for the agreement of
  /// all processes.
  void bind(std::byte* memory, comm::Transport& transport, const comm::World& world);

  /// Takes memory for the times of the kernels of a step. Call before a run with
  /// `settings.time_kernels`.
  void prepare_timing();
  /// Op and kernel of a piece: "b1/0/conv1 LinearForward".
  [[nodiscard]] std::string name_of(const KernelPiece& piece) const;

  /// Whether the unit reads images or labels; if so it needs a feed.
  [[nodiscard]] bool reads_images(std::size_t unit) const;
  [[nodiscard]] bool reads_labels(std::size_t unit) const;

  /// Runs the whole schedule once. `feeds` by unit, null where none is needed. Training ends with
  /// the update of the weights. If a gradient or a batch statistic is not finite on any rank, the
  /// update is skipped and no trained value changes. Errors: Numeric with the first op whose result
  /// is not finite, if `check_exceptions` is set.
  void run(const device::ExecutionSpace& space, const StepSettings& settings,
           std::span<io::BatchSource* const> feeds);

  /// Each has a launch of its own, which is kept twice. The more there are, the less a host gains
  /// that goes ahead.
  static constexpr std::int32_t kMostMicroBatchesAhead = 8;
  /// Whether queue() and finish() may take the place of run(): on a device that keeps launches, for
  /// the training of a process that has the whole network as one stage, and few micro-batches.
  [[nodiscard]] bool goes_ahead() const;
  /// Queues a training step and returns. Behind the numbers of the step it makes one launch from
  /// each arrival of images to the next, and does not record when it runs. A second
  /// step may be queued before the first is finished, with `settings.after_skip`, unless somebody
  /// needs the weights or the gradients between the two. Not with clipping by norm, nor with
  /// settings that look at kernels.
  void queue(const device::ExecutionSpace& space, const StepSettings& settings,
             std::span<io::BatchSource* const> feeds);
  /// Waits for the step that was queued first. From then on skipped() and metrics() are its.
  void finish();

  /// After run(), what all ranks do together before the next: its time is a wait for all ranks of
  /// the same step.
  void exchange(const std::function<void()>& with_all_ranks);

  /// Whether the last run skipped its update. The same on all ranks.
  [[nodiscard]] bool skipped() const { return skipped_; }
  /// After such a run, as WeightUpdate::first_not_finite().
  [[nodiscard]] std::string first_not_finite() const { return update_.first_not_finite(); }
  /// As WeightUpdate::last_scale().
  [[nodiscard]] float gradient_scale() const { return update_.last_scale(); }
  /// Metrics of the last run, at index replica + replicas x micro-batch. Zero for those that other
  /// ranks computed.
  [[nodiscard]] std::span<const MicroBatchMetrics> metrics() const { return metrics_; }
  /// The last run, or the one that is running.
  [[nodiscard]] const Recording& recording() const { return recording_; }
  /// The recording's times are by this clock from now on; at first by steady_nanoseconds.
  void set_clock(Recording::Clock now) { recording_.set_clock(now); }
  [[nodiscard]] const PipelinePlan& plan() const { return *plan_; }
  /// Between its stages.
  [[nodiscard]] std::vector<Link> links() const { return pipeline::links(all_messages_); }
  /// Phases of the stages, and parts of steps, that are one launch each, and those that the device
  /// could not keep.
  [[nodiscard]] KeptCount kept() const;
  /// Maximum number of micro-batches that each unit held at once in the last run.
  [[nodiscard]] std::span<const std::int32_t> measured_stash() const { return measured_stash_; }

 private:
  void begin_step(const device::ExecutionSpace& space, const StepSettings& settings);
  void pack(const StepSettings& settings);
  [[nodiscard]] bool reads_images_at(std::size_t entry) const {
    return recording_.entries()[entry].action.kind == ActionKind::Forward;
  }
  [[nodiscard]] const io::Batch& next_batch(io::BatchSource& feed);
  void execute(std::size_t first, std::size_t count, const StepSettings& settings,
               std::span<io::BatchSource* const> feeds);
  void compute(std::size_t first, std::size_t count, const StepSettings& settings,
               std::span<io::BatchSource* const> feeds);
  void run_part(std::size_t entry, Phase phase, std::size_t part, std::int32_t m,
                const StepSettings& settings);
  /// Lets the sums over replicas go on.
  void add_up();
  void begin_forward(std::size_t unit, std::int32_t m, io::BatchSource* feed);
  void end_forward(std::size_t unit, std::int32_t m, const StepSettings& settings,
                   ActionRecord& record);
  void begin_backward(std::size_t unit, std::int32_t m);
  void end_backward(std::size_t entry, const StepSettings& settings, ActionRecord& record);
  void free_slot(std::size_t unit, std::int32_t m);
  void collect_metrics(const StepSettings& settings, std::size_t turn);

  const PipelinePlan* plan_;
  bool training_;
  std::int32_t micro_batches_;
  std::vector<Message> all_messages_;
  std::vector<StageRun> runs_;  ///< by unit
  /// What is read and returned, by unit, from bind() on. Steps that are queued take turns.
  std::array<std::vector<HostPlaces>, 2> places_;
  std::array<device::Event, 2> done_;  ///< steps of each turn
  std::size_t turn_ = 0;               ///< of the step that was begun last
  std::size_t queued_ = 0;             ///< steps that are not finished
  std::size_t finished_ = 0;           ///< of those that were queued
  Recording recording_;
  DeviceSpans spans_;
  std::vector<std::size_t> packing_entry_;  ///< by unit
  WeightUpdate update_;
  StatisticsTeams teams_;
  std::vector<StageMessages> messages_;       ///< by unit
  std::vector<const io::Batch*> batches_;     ///< of the last forward passes, by unit
  std::vector<std::int32_t> held_;            ///< micro-batches in the stash, by unit
  std::vector<std::int32_t> measured_stash_;  ///< the most of them in this step
  std::vector<MicroBatchMetrics> metrics_;
  comm::Transport* transport_ = nullptr;
  int transport_run_ = 0;
  const device::ExecutionSpace* space_ = nullptr;
  bool skipped_ = false;
  /// From one arrival of images to the next. Kernels get addresses of the turn and of the images.
  struct PieceKey {
    std::size_t turn;
    std::size_t entry;
    const std::byte* images;
    std::uint64_t seed;
    friend bool operator==(const PieceKey&, const PieceKey&) = default;
  };
  KeptLaunches<PieceKey> kept_;
  bool whole_ = false;  ///< queue() is at work: phases have no launches of their own
};

}  // namespace millrace::pipeline
