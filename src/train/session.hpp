// SPDX-License-Identifier: Apache-2.0
//
// src/train: the training itself.
//
// config       a fully resolved training as plain data
// loss_scaler  how the loss scale changes from step to step
// lr_schedule, cadence   pure functions of the iteration: learning rate, and what is due when
// session      this process' part of a network: steps, evaluation, loading and saving
// benchmark    speed, and whether loaders or devices limit it
// checkpoint_writer  copies tensors between two steps and writes them in threads
// trainer      the training loop: data, logs, checkpoints, validation, signals
// metrics_log, progress  the log files and console lines of a run
//
// config .. progress are pure and tested without a device; session and trainer are the run half.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "io/checkpoint.hpp"
#include "io/data/prefetch.hpp"
#include "models/graph.hpp"
#include "pipeline/executor.hpp"
#include "train/config.hpp"
#include "train/loss_scaler.hpp"

namespace millrace::train {

/// The result of one weight update over all replicas, computed before the update.
struct StepResult {
  pipeline::MicroBatchMetrics metrics;
  bool skipped = false;         ///< a gradient was not finite: nothing was updated
  double loader_seconds = 0.0;  ///< time this process waited for images
};

/// Copies of the tensors that a process saves, as float32 on the host. Memory is allocated once.
class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(std::vector<io::TensorInfo> infos);
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }
  /// Replaces the copies by `values`, tensor by tensor.
  void take(std::span<const pipeline::StoredValues> values);

 private:
  std::vector<float> data_;
  std::vector<io::NamedTensor> tensors_;
};

/// Name of a tensor that holds a NaN or an infinity, or "".
[[nodiscard]] std::string first_not_finite(const Snapshot& snapshot);

/// The loaders of a process: one for each of its stages that reads images or labels.
struct Feeds {
  std::vector<std::unique_ptr<io::Loader>> loaders;  ///< by unit; null if not needed
  std::vector<io::Loader*> pointers;
  [[nodiscard]] std::int64_t stand_ins() const;  ///< in all batches handed out so far
};

/// This process' stages of a network, with their memory. Needs a device::Environment. All ranks
/// must construct their sessions and call the collective functions together.
class Session {
 public:
  enum class Use { Training, Evaluation };
  Session(const TrainConfig& config, Use use, const comm::World& world);

  [[nodiscard]] const models::Graph& graph() const { return graph_; }
  /// Device memory of this process in bytes, exact.
  [[nodiscard]] std::int64_t arena_bytes() const;
  /// Host memory for checkpoints: a snapshot, and temporary memory for writing it.
  [[nodiscard]] std::int64_t checkpoint_bytes() const;
  /// Code and tables of the vendor's library, which are resident only after its kernels have run.
  [[nodiscard]] std::int64_t library_bytes() const;
  /// Host memory that initialise() uses temporarily, before any other memory is allocated.
  [[nodiscard]] std::int64_t initial_bytes() const;
  /// Host memory for the loaders' images.
  [[nodiscard]] std::int64_t loader_bytes(std::int64_t validation_images) const;
  /// Number of threads that read images in this process.
  [[nodiscard]] int reading_threads() const;
  /// Allocates that memory. Must be called before any function below.
  void allocate();

  void initialise(std::uint64_t seed);
  /// Loads parameters and running statistics; for training also optimizer state and the state of
  /// the loss scaling. 16-bit masters are rounded to nearest. Errors: Checkpoint, naming a tensor
  /// that is missing, has another shape or is not part of this network, or the optimizer that wrote
  /// slots of another rule.
  void load(const io::CheckpointReader& checkpoint);
  /// Loads parameters and running statistics from the checkpoint that a run starts from, except
  /// those whose names contain one of `fresh`. Errors: as tensors_to_take().
  void begin_with(const io::CheckpointReader& checkpoint, std::span<const std::string> fresh);
  /// Memory for the tensors that this process saves: those of its stages of replica 0, and slots
  /// that only other replicas hold.
  [[nodiscard]] Snapshot make_snapshot() const;
  /// Copies their current values. Call between two steps.
  void take(Snapshot& snapshot) const;
  [[nodiscard]] Snapshot snapshot() const;
  /// The tensors of a complete checkpoint, derived from the network alone.
  [[nodiscard]] std::vector<io::TensorInfo> checkpoint_tensors() const;
  /// Collective. Errors: Peer, naming stage and replica, when replicas hold different weights.
  void check_replicas();

  /// Loaders for training, from a position in the run, and for validation. Images that stay on the
  /// device are copied there, and the loaders then read only labels.
  [[nodiscard]] Feeds training_feeds(const std::shared_ptr<const io::Dataset>& dataset,
                                     std::int64_t first_position);
  [[nodiscard]] Feeds validation_feeds(const std::shared_ptr<const io::Dataset>& dataset) const;

  /// Runs weight update number `iteration` on the next micro-batches. Collective.
  StepResult step(const Feeds& feeds, std::int64_t iteration, double learning_rate);
  /// The loss scaling of the next step.
  [[nodiscard]] const ScalingState& scaling() const { return scaling_; }
  /// Sums over the `images` of a validation set. Stops early if `cancelled`, called with the number
  /// of images seen so far, returns true on any rank. Collective.
  pipeline::MicroBatchMetrics evaluate(const Feeds& feeds, std::int64_t images,
                                       const std::function<bool(std::int64_t)>& cancelled);

  /// Number of stand-ins (io::Sample) so far in the batches of the feeds used last, over all ranks.
  [[nodiscard]] std::int64_t stand_ins() const { return stand_ins_; }

  /// The stages of this process, by replica and stage.
  [[nodiscard]] std::vector<pipeline::Unit> units() const;
  /// Executor of training; for traces, statistics and the watchdog.
  [[nodiscard]] const pipeline::Executor& executor() const { return *training_; }
  /// The executor that is running or ran last.
  [[nodiscard]] const pipeline::Executor* active() const { return active_.load(); }

 private:
  struct HeldStage {
    std::int32_t replica;
    std::int32_t stage;
    std::unique_ptr<pipeline::Stage> run;
  };

  /// Calls f(info, stored values) for every tensor of these stages that belongs in a checkpoint.
  enum class Replicas { First, All };
  template <class F>
  void for_tensors(Replicas replicas, F&& f) const;
  template <class F>
  void for_slots(const HeldStage& held, models::ParameterId id, F&& f) const;
  void load_tensor(const io::CheckpointReader& checkpoint, const io::TensorInfo& wanted,
                   const pipeline::StoredValues& values) const;
  void refresh_copies() const;
  void make_stages(Use use);
  [[nodiscard]] ops::Backend& backend_of(std::int32_t stage);
  void make_executors(Use use);
  [[nodiscard]] int image_readers(const pipeline::Executor& executor) const;
  [[nodiscard]] int loader_threads(const pipeline::Executor& executor) const;
  [[nodiscard]] std::int64_t resident_bytes() const;
  io::ResidentImages make_resident(const std::shared_ptr<const io::Dataset>& dataset,
                                   io::LoaderOptions options);
  [[nodiscard]] Feeds feeds(const pipeline::Executor& executor,
                            const std::shared_ptr<const io::Dataset>& dataset,
                            const io::SampleOrder& order, const io::LoaderOptions& options) const;
  /// Sums of an executor's metrics and stand-ins over all ranks, in the order of the micro-batches.
  pipeline::MicroBatchMetrics collect(const pipeline::Executor& executor, const Feeds& feeds);
  pipeline::Executor& run(pipeline::Executor& executor, const pipeline::StepSettings& settings,
                          const Feeds& feeds);

  /// Validation runs in groups of micro-batches; the last group may be smaller.
  struct Group {
    pipeline::PipelinePlan plan;
    std::unique_ptr<pipeline::Executor> executor;
  };

  TrainConfig config_;
  const comm::World* world_;
  models::Graph graph_;
  std::map<std::int32_t, std::unique_ptr<ops::Backend>> backends_;  ///< by stage
  std::unique_ptr<comm::Transport> transport_;
  std::vector<HeldStage> stages_;
  std::unique_ptr<pipeline::Executor> training_;
  std::vector<Group> groups_;  ///< the full-size group, then the rest if any
  std::unique_ptr<device::Arena> arena_;
  std::unique_ptr<device::Arena> resident_images_;  ///< ImageSource::Device: one micro-batch
  ScalingState scaling_;
  std::vector<double> sums_;  ///< metrics and stand-ins, to be summed over ranks
  std::int64_t stand_ins_ = 0;
  std::atomic<const pipeline::Executor*> active_{nullptr};
  device::ExecutionSpace space_;
};

}  // namespace millrace::train
