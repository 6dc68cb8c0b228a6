// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.hpp"
#include "core/update_rule.hpp"
#include "io/checkpoint.hpp"
#include "io/foreign_files.hpp"
#include "models/graph.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/stage_run.hpp"

namespace millrace::training {

/// Copies of the tensors that a process saves, as float32 on the host. Memory is allocated once.
class Snapshot {
 public:
  Snapshot() = default;
  explicit Snapshot(std::vector<io::TensorInfo> infos);
  [[nodiscard]] const std::vector<io::NamedTensor>& tensors() const { return tensors_; }
  /// All of them, one behind the other.
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(data_)); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(data_)); }
  /// Replaces the copies by `values`, tensor by tensor.
  void take(std::span<const pipeline::StoredValues> values);

 private:
  std::vector<float> data_;
  std::vector<io::NamedTensor> tensors_;
};

/// Name of a tensor that holds a NaN or an infinity, or "".
[[nodiscard]] std::string first_not_finite(const Snapshot& snapshot);

/// The tensors of a process' stages by the names that they have in checkpoints: parameters, running
/// statistics, optimizer state (slots). Replicas hold the same tensors, except for divided slots.
class StageTensors {
 public:
  /// `graph` must outlive this, and so must the stages of `units`, which must be bound before
  /// values are read or written. `rule` is that of the training; none: an evaluation, without
  /// slots. `averages`: whether the stages keep moving averages, which checkpoints have as slots.
  StageTensors(const models::Graph& graph, std::vector<pipeline::LocalStage> units,
               std::optional<UpdateRule> rule, bool averages = false);

  /// The same of another stage.
  [[nodiscard]] StageTensors of(const pipeline::LocalStage& unit) const {
    return {*graph_, {unit}, rule_, averages_};
  }

  /// Loads all tensors. 16-bit masters are rounded to nearest. Errors: Checkpoint, naming a tensor
  /// that is missing, has another shape or is not part of this network, or the optimizer that wrote
  /// slots of another rule.
  void load(const io::CheckpointReader& checkpoint) const;
  /// Loads parameters and running statistics from the checkpoint that a run starts from, except
  /// those whose names contain one of `fresh`; moving averages begin with them. Errors: as
  /// tensors_to_take().
  void begin_with(const io::CheckpointReader& checkpoint, std::span<const std::string> fresh) const;
  /// The same from the weights in the network file at `path`. Additional errors: as
  /// io::NetworkFile::values, and Data for values that no network can compute with.
  void begin_with(const io::NetworkFile& file, const std::filesystem::path& path,
                  std::span<const std::string> fresh) const;

  /// The values of a tensor of a checkpoint, on every rank. Collective.
  [[nodiscard]] std::vector<float> values(std::string_view name, std::int64_t elements,
                                          const comm::World& world) const;
  /// The same of the gradient of a parameter that learns, as replicas have added it up.
  [[nodiscard]] std::vector<float> gradient(models::ParameterId id, const comm::World& world) const;
  /// Sets the tensors with these names that there are. A moving average that is not among them
  /// begins with its parameter.
  void set(const std::map<std::string, std::vector<float>>& values) const;

  /// Memory for the tensors that this process saves: those of its stages of replica 0, and slots
  /// that only other replicas hold.
  [[nodiscard]] Snapshot make_snapshot() const;
  /// Copies their current values. Call between two steps.
  void take(Snapshot& snapshot) const;
  [[nodiscard]] Snapshot snapshot() const;
  /// Host memory for checkpoints: a snapshot, and temporary memory for writing it. One process
  /// reads back what all have written.
  [[nodiscard]] std::int64_t checkpoint_bytes(bool reads_back) const;
  /// The tensors of a complete checkpoint, derived from the network alone, and those of a stage.
  [[nodiscard]] std::vector<io::TensorInfo> checkpoint_tensors() const;
  [[nodiscard]] std::vector<io::TensorInfo> checkpoint_tensors(
      const pipeline::OpRange& stage) const;

  /// Collective. Errors: Peer, naming stage and replica, when replicas hold different weights.
  void compare_replicas(const pipeline::PipelinePlan& plan, const comm::World& world) const;

 private:
  /// Of replicas that hold the same tensor, only the first is visited, or all.
  enum class Replicas { First, All };
  using Visit = std::function<void(const io::TensorInfo&, const pipeline::StoredValues&)>;
  void visit(Replicas replicas, const Visit& f) const;
  void visit_slots(const pipeline::Parameters& parameters, models::ParameterId id,
                   const Visit& f) const;
  void load_tensor(const io::CheckpointReader& checkpoint, const io::TensorInfo& wanted,
                   const pipeline::StoredValues& values) const;
  void require_known(const io::CheckpointReader& checkpoint) const;
  void refresh_copies() const;
  void begin_averages() const;

  const models::Graph* graph_;
  std::vector<pipeline::LocalStage> units_;
  std::optional<UpdateRule> rule_;
  bool averages_;
};

/// Tensors that are copied together, and their copies.
struct StageCopy {
  int part = 0;  ///< its number in snapshots in memory
  StageTensors tensors;
  Snapshot values;
  bool is_saved = true;  ///< in the checkpoints of this process; otherwise another one saves them
};

}  // namespace millrace::training
