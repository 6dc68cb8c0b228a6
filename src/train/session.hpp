// SPDX-License-Identifier: Apache-2.0
//
// src/train: what a training is.
//
// config       a fully resolved training as plain data
// loss_scaler  how the scale of the loss moves with what the steps find
// lr_schedule, cadence   pure functions of the iteration: rate, and what is due when
// session      this process' part of a network: steps, evaluation, loading and saving
// benchmark    how fast it is, and whether loaders or devices limit it
// checkpoint_writer  copies tensors between two steps and has threads write them
// trainer      the loop around it: data, logs, checkpoints, validation, signals
// metrics_log, progress  the files and lines in which a run tells about itself
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
#include "io/prefetch.hpp"
#include "models/graph.hpp"
#include "pipeline/executor.hpp"
#include "train/config.hpp"
#include "train/loss_scaler.hpp"

namespace millrace::train {

/// What one weight update gave, before the update, over all replicas.
struct StepResult {
  pipeline::MicroBatchMetrics metrics;
  bool skipped = false;         ///< a gradient was not finite somewhere: nothing was updated
  double loader_seconds = 0.0;  ///< that this process spent waiting for images
};

/// Copies of the tensors that a process answers for, as float32 on the host, ready to be written.
/// Its memory is taken once.
class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(std::vector<io::TensorInfo> infos);
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }
  /// Copies `values`, tensor by tensor, over what was there.
  void take(std::span<const pipeline::StoredValues> values);

 private:
  std::vector<float> data_;
  std::vector<io::NamedTensor> tensors_;
};

/// Name of a tensor that holds a NaN or an infinity, or "".
[[nodiscard]] std::string first_not_finite(const Snapshot& snapshot);

/// The loaders of a process, one for each of its stages that reads images or labels.
struct Feeds {
  std::vector<std::unique_ptr<io::Loader>> loaders;  ///< by unit; null where none is needed
  std::vector<io::Loader*> pointers;
  [[nodiscard]] std::int64_t stand_ins() const;  ///< in all batches that were handed out
};

/// This process' stages of a network, with their memory. Needs a device::Environment. Several ranks
/// make their sessions, and call what is said to be collective, at the same time.
class Session {
 public:
  enum class Use { Training, Evaluation };
  Session(const TrainConfig& config, Use use, const comm::World& world);

  [[nodiscard]] const models::Graph& graph() const { return graph_; }
  /// Device memory of this process in bytes, exact.
  [[nodiscard]] std::int64_t arena_bytes() const;
  /// Host memory that checkpoints take: a snapshot, and for a while what writing it needs.
  [[nodiscard]] std::int64_t checkpoint_bytes() const;
  /// Code and tables of the vendor's library that are only touched once its kernels run.
  [[nodiscard]] std::int64_t library_bytes() const;
  /// Host memory that initialise() takes and gives back before anything else of this is taken.
  [[nodiscard]] std::int64_t initial_bytes() const;
  /// Host memory of the loaders' images.
  [[nodiscard]] std::int64_t loader_bytes(std::int64_t validation_images) const;
  /// Threads that will read images in this process.
  [[nodiscard]] int reading_threads() const;
  /// Takes that memory. Nothing below may be called before.
  void allocate();

  void initialise(std::uint64_t seed);
  /// Loads parameters, running statistics and, for training, slots and the state of the loss
  /// scaling; where masters have 16 bits, values are rounded to nearest. Errors: Checkpoint, naming
  /// a tensor that is missing, has another shape, or belongs to no parameter of this network, and
  /// the rule that wrote slots of another one.
  void load(const io::CheckpointReader& checkpoint);
  /// Takes parameters and running statistics from the checkpoint that a run begins with, but for
  /// those of which a text of `fresh` is in the name. Errors: as tensors_to_take().
  void begin_with(const io::CheckpointReader& checkpoint, std::span<const std::string> fresh);
  /// Room for the tensors that this process answers for: those of its stages of the first replica,
  /// and slots that other replicas keep.
  [[nodiscard]] Snapshot make_snapshot() const;
  /// What they are now. Between two steps.
  void take(Snapshot& snapshot) const;
  [[nodiscard]] Snapshot snapshot() const;
  /// What all processes' snapshots together must hold, from the network alone.
  [[nodiscard]] std::vector<io::TensorInfo> checkpoint_tensors() const;
  /// Collective. Errors: Peer, naming stage and replica, when replicas hold different weights.
  void check_replicas();

  /// Loaders of training from a position in the run, and of validation. With images that stay on
  /// the device, they are put there, and the loaders only have labels to read.
  [[nodiscard]] Feeds training_feeds(const std::shared_ptr<const io::Dataset>& dataset,
                                     std::int64_t first_position);
  [[nodiscard]] Feeds validation_feeds(const std::shared_ptr<const io::Dataset>& dataset) const;

  /// Weight update number `iteration` of the run, on the next micro-batches. Collective.
  StepResult step(const Feeds& feeds, std::int64_t iteration, double learning_rate);
  /// The scaling of the next step's loss.
  [[nodiscard]] const ScalingState& scaling() const { return scaling_; }
  /// Sums over the `images` of a validation set, or up to where `cancelled`, which is told how many
  /// were seen, says stop (on one rank is enough). Collective.
  pipeline::MicroBatchMetrics evaluate(const Feeds& feeds, std::int64_t images,
                                       const std::function<bool(std::int64_t)>& cancelled);

  /// Stand-ins (io::Sample) in the batches so far of the feeds that ran last, over all ranks.
  [[nodiscard]] std::int64_t stand_ins() const { return stand_ins_; }

  /// What this process holds, by replica and stage.
  [[nodiscard]] std::vector<pipeline::Unit> units() const;
  /// Of training; for traces, statistics and the watchdog.
  [[nodiscard]] const pipeline::Executor& executor() const { return *training_; }
  /// The executor at work now, or the one that was last.
  [[nodiscard]] const pipeline::Executor* active() const { return active_.load(); }

 private:
  struct HeldStage {
    std::int32_t replica;
    std::int32_t stage;
    std::unique_ptr<pipeline::Stage> run;
  };

  /// Calls f(info, stored values) for every tensor of these stages that a checkpoint holds.
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
  /// Sums of an executor's metrics, and of stand-ins, over all ranks, in order of the
  /// micro-batches.
  pipeline::MicroBatchMetrics collect(const pipeline::Executor& executor, const Feeds& feeds);
  pipeline::Executor& run(pipeline::Executor& executor, const pipeline::StepSettings& settings,
                          const Feeds& feeds);

  /// Validation runs in groups of micro-batches, the last of which may be smaller.
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
  std::vector<Group> groups_;  ///< whole ones, then the rest where there is one
  std::unique_ptr<device::Arena> arena_;
  std::unique_ptr<device::Arena> resident_images_;  ///< ImageSource::Device: a micro-batch
  ScalingState scaling_;
  std::vector<double> sums_;  ///< of metrics and stand-ins, on their way between ranks
  std::int64_t stand_ins_ = 0;
  std::atomic<const pipeline::Executor*> active_{nullptr};
  device::ExecutionSpace space_;
};

}  // namespace millrace::train
