// SPDX-License-Identifier: Apache-2.0
//
// src/train: what a training is.
//
// config       a fully resolved training as plain data
// lr_schedule, cadence   pure functions of the iteration: rate, and what is due when
// session      one network on one device: steps, evaluation, loading and saving of its tensors
// trainer      the loop around it: data, logs, checkpoints, validation, signals
// metrics_log, progress  the files and lines in which a run tells about itself
//
// config .. progress are pure and tested without a device; session and trainer are the run half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/arena.hpp"
#include "io/checkpoint.hpp"
#include "io/prefetch.hpp"
#include "models/graph.hpp"
#include "pipeline/stage.hpp"
#include "train/config.hpp"

namespace millrace::train {

/// What one weight update gave, before the update.
struct StepResult {
  pipeline::MicroBatchMetrics metrics;
  double loader_seconds = 0.0;  ///< spent waiting for images
};

/// Every tensor of a session, ready to be written: host copies, or the device's own memory where
/// the host can read it. Valid until the next step.
class Snapshot {
 public:
  void add(io::TensorInfo info, const std::byte* device);
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }

 private:
  std::vector<std::vector<std::byte>> data_;
  std::vector<io::NamedTensor> tensors_;
};

/// Name of a tensor that holds a NaN or an infinity, or "".
[[nodiscard]] std::string first_not_finite(const Snapshot& snapshot);

/// A network with its memory on one device. Needs a device::Environment.
class Session {
 public:
  enum class Use { Training, Evaluation };
  Session(const TrainConfig& config, Use use);

  [[nodiscard]] const models::Graph& graph() const { return graph_; }
  /// Device memory in bytes, exact.
  [[nodiscard]] std::int64_t arena_bytes() const { return stage_->bytes(); }
  /// Host memory that writing a checkpoint takes for a while.
  [[nodiscard]] std::int64_t checkpoint_bytes() const;
  /// Code and tables of the vendor's library that are only touched once its kernels run.
  [[nodiscard]] std::int64_t library_bytes() const;
  /// Takes that memory. Nothing below may be called before.
  void allocate();

  void initialise(std::uint64_t seed) { stage_->parameters().initialise(seed); }
  /// Loads parameters, running statistics and, for training, slots. Errors: Checkpoint, naming a
  /// tensor that is missing, has another shape, or belongs to no parameter of this network.
  void load(const io::CheckpointReader& checkpoint);
  [[nodiscard]] Snapshot snapshot();

  /// One weight update on the loader's next micro-batches.
  StepResult step(io::Loader& loader, double learning_rate);
  /// Sums over everything the loader has left, or up to where `cancelled` says stop.
  pipeline::MicroBatchMetrics evaluate(io::Loader& loader, const std::function<bool()>& cancelled);

 private:
  /// Calls f(info, device pointer) for every tensor a checkpoint holds.
  template <class F>
  void for_tensors(F&& f);

  TrainConfig config_;
  models::Graph graph_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<pipeline::Stage> stage_;
  std::unique_ptr<device::Arena> arena_;
  device::ExecutionSpace space_;
};

}  // namespace millrace::train
