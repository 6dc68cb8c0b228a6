// SPDX-License-Identifier: Apache-2.0
//
// src/train: the training itself.
//
// loss_scaler               how the loss scale changes from step to step
// cadence                   a pure function of the iteration: what is due when
// metrics_log, progress     the log files and console lines of a run
// memory                    what a process needs, before it allocates
//
// session                   this process' part of a network: steps and evaluation
// stage_tensors             its tensors: loading, copying, comparing
// feeder                    its loaders of images and labels
// trainer                   a run: start, restore, and the loop over steps
// checkpoints               when it saves; checkpoint_writer writes in threads
// validator                 validates it
// reporter                  what it prints and logs; statistics and trace of the devices' time
// benchmark                 speed, and whether loaders or devices limit it
//
// The first three are pure and tested without a device; the others are the run half. What a run is,
// its learning rates among it, is told by src/run.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/transport.hpp"
#include "comm/world.hpp"
#include "core/loss_function.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "io/checkpoint.hpp"
#include "models/graph.hpp"
#include "partition/process_memory.hpp"
#include "pipeline/executor.hpp"
#include "run/run.hpp"
#include "train/feeder.hpp"
#include "train/loss_scaler.hpp"
#include "train/setup.hpp"
#include "train/stage_tensors.hpp"

namespace millrace::training {

/// The result of one weight update over all replicas, computed before the update.
struct StepResult {
  pipeline::MicroBatchMetrics metrics;
  bool skipped = false;         ///< a gradient was not finite: nothing was updated
  double loader_seconds = 0.0;  ///< time this process waited for images
};

/// Takes the logits of the images of a micro-batch, from number `first` of the set on: a row for
/// each.
using TakeLogits = std::function<void(std::int64_t first, std::span<const float> logits)>;

/// This process' stages of a network, with their memory. Needs a device::Environment. All ranks
/// must construct their sessions and call the collective functions together.
class Session {
 public:
  using Use = training::Use;
  Session(const run::Run& config, Use use, const comm::World& world);
  /// The same for a network of the caller's, in place of the one that the configuration names.
  Session(const run::Run& config, models::Graph graph, Use use, const comm::World& world);
  /// The part of process `rank`, to learn its sizes, or to measure it alone: messages from other
  /// processes are there at once and hold nothing. To measure, the world must be alone.
  Session(const run::Run& config, Use use, const comm::World& world, int rank);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Waits for steps that are not finished.
  ~Session();

  [[nodiscard]] const models::Graph& graph() const { return graph_; }
  [[nodiscard]] int rank() const { return rank_; }
  /// Device memory of this process in bytes, exact.
  [[nodiscard]] std::int64_t arena_bytes() const;
  /// The same by device and use.
  [[nodiscard]] std::vector<partition::DeviceMemory> device_memory() const;
  /// Host memory of the messages between processes, if they go through it.
  [[nodiscard]] std::int64_t staging_bytes() const;
  /// Host memory that initialise() uses temporarily, before any other memory is allocated.
  [[nodiscard]] std::int64_t initial_bytes() const;
  /// Allocates the device memory. Must be called before any function below. `placed` is called
  /// after each of the pieces() of the memory.
  void allocate(const std::function<void()>& placed = {});
  [[nodiscard]] std::int64_t pieces() const;

  void initialise(std::uint64_t seed);
  /// Loads the tensors; for training also the state of the loss scaling. Errors: as
  /// StageTensors::load().
  void load(const io::CheckpointReader& checkpoint);
  /// Exchanges the weights and running statistics with their moving averages, for a validation of
  /// these, and back. No step may run meanwhile.
  void exchange_averages();
  /// From now on, steps and validations have this loss in place of the network's; none: that.
  void set_loss(LossFunction loss) { loss_ = std::move(loss); }
  /// The gradient of a parameter that learns, as the last step's update read it: the mean over the
  /// micro-batches, clipped. Collective.
  [[nodiscard]] std::vector<float> gradient(models::ParameterId id) const;
  [[nodiscard]] const StageTensors& tensors() const { return *tensors_; }
  [[nodiscard]] Feeder& feeder() { return *feeder_; }
  [[nodiscard]] const Feeder& feeder() const { return *feeder_; }
  /// Collective. Errors: as StageTensors::compare_replicas().
  void compare_replicas() const { tensors_->compare_replicas(config_.pipeline, *world_); }

  /// Runs weight update number `iteration` on the next micro-batches, and records when each kernel
  /// runs if asked, for which the configuration must ask for a trace of kernels. Collective.
  StepResult step(const Feeds& feeds, std::int64_t iteration, double learning_rate,
                  bool time_kernels = false);
  /// The same in two halves. Where the host goes ahead of the device, queue_step() returns before
  /// the device is done, and finish_step() waits for the step that was queued first and returns its
  /// result. Collective.
  void queue_step(const Feeds& feeds, std::int64_t iteration, double learning_rate,
                  bool time_kernels = false);
  StepResult finish_step();
  [[nodiscard]] bool goes_ahead() const { return goes_ahead_ && !loss_; }
  /// Whether a second step may be queued before the first is finished: not if somebody may ask for
  /// the gradients or the images of the first.
  [[nodiscard]] bool may_queue_ahead() const;
  /// After a skipped step, as pipeline::WeightUpdate::first_not_finite().
  [[nodiscard]] std::string first_not_finite() const { return training_->first_not_finite(); }
  /// The loss scaling of the step behind the last one that is finished.
  [[nodiscard]] const ScalingState& scaling() const { return scaling_; }
  void set_scaling(const ScalingState& scaling) { scaling_ = scaling; }
  /// Sums over the `images` of a validation set, also added to `by_class`, which has all classes of
  /// the network or none. Stops early if `cancelled`, called with the number of images seen so far,
  /// returns true on any rank. The processes with the last stage pass its logits to `take`, if
  /// given. Collective.
  pipeline::MicroBatchMetrics evaluate(const Feeds& feeds, std::int64_t images,
                                       const std::function<bool(std::int64_t)>& cancelled,
                                       const TakeLogits& take = {},
                                       std::span<pipeline::ClassCounts> by_class = {});

  /// Runs the next micro-batches of a session for inference, as many as a weight update takes, and
  /// returns their sums. The weights must stay the same from the first call on. Collective.
  StepResult infer(const Feeds& feeds);

  /// Number of stand-ins (io::Sample) so far in the batches of the feeds used last, over all ranks.
  [[nodiscard]] std::int64_t stand_ins() const { return stand_ins_; }

  /// The stages of this process, by replica and stage.
  [[nodiscard]] const std::vector<pipeline::LocalStage>& units() const { return units_; }
  /// Executor of training, or of inference; for traces, statistics and the watchdog.
  [[nodiscard]] const pipeline::Executor& executor() const {
    return training_ ? *training_ : *groups_.front().executor;
  }
  /// Recordings of training steps are by this clock from now on.
  void set_clock(pipeline::Recording::Clock now) { training_->set_clock(now); }
  /// The executor that is running or ran last.
  [[nodiscard]] const pipeline::Executor* active() const { return active_.load(); }

 private:
  Session(const run::Run& config, models::Graph graph, Use use, const comm::World& world, int rank,
          std::unique_ptr<comm::Transport> transport);

  /// Validation runs in groups of micro-batches; the last group may be smaller. Inference has one.
  /// Serving over several processes has groups of 32, 16, 8, .. so that all have work.
  struct Group {
    pipeline::PipelinePlan plan;
    std::unique_ptr<pipeline::Executor> executor;
  };

  struct QueuedStep {
    std::int64_t stand_ins;  ///< after it
    double loader_seconds;
  };

  void plan_evaluation(Use use);
  void plan_inference();
  void make_stages(Use use);
  [[nodiscard]] ops::Backend& backend_of(std::int32_t stage);
  void make_executors(Use use);
  /// Sums of an executor's metrics and stand-ins over all ranks, in the order of the micro-batches.
  pipeline::MicroBatchMetrics collect(const pipeline::Executor& executor, std::int64_t stand_ins);
  [[nodiscard]] pipeline::StepSettings settings_of(std::int64_t iteration, double learning_rate,
                                                   bool time_kernels) const;
  StepResult result(const QueuedStep& step);
  void run(pipeline::Executor& executor, const pipeline::StepSettings& settings,
           const Feeds& feeds);

  run::Run config_;
  const comm::World* world_;
  int rank_;
  models::Graph graph_;
  std::map<std::int32_t, std::unique_ptr<ops::Backend>> backends_;  ///< by stage
  std::vector<std::unique_ptr<pipeline::Stage>> stages_;
  std::vector<pipeline::LocalStage> units_;  ///< those stages
  std::unique_ptr<pipeline::Executor> training_;
  std::vector<Group> groups_;  ///< the largest first
  std::optional<StageTensors> tensors_;
  std::optional<Feeder> feeder_;
  std::unique_ptr<device::Arena> arena_;
  std::unique_ptr<comm::Transport> transport_;  ///< its messages end before their memory
  ScalingState scaling_;
  LossFunction loss_;
  bool goes_ahead_ = false;        ///< queue_step() returns before the device is done
  std::deque<QueuedStep> queued_;  ///< not finished
  bool packed_ = false;            ///< the weights are, and nothing else uses their place
  std::vector<double> sums_;       ///< metrics and stand-ins, to be summed over ranks
  std::int64_t stand_ins_ = 0;
  std::int64_t trained_stand_ins_ = 0;  ///< of the feeds of training, after the last finished step
  std::atomic<const pipeline::Executor*> active_{nullptr};
  device::ExecutionSpace space_;
};

/// Passes the logits of all images of a set to `take`, as a Classifier does, with the weights of
/// the checkpoint and in the micro-batches of a validation of `config`. Collective.
void classify(const run::Run& config, const comm::World& world,
              const io::CheckpointReader& checkpoint,
              const std::shared_ptr<const io::Dataset>& images, const TakeLogits& take);

}  // namespace millrace::training
