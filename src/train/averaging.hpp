// SPDX-License-Identifier: Apache-2.0
//
// Means of a run's checkpoints, which often validate better than the last one (Izmailov et al.,
// arXiv 1803.05407). Each is a run directory of its own below the run, so that the run's list of
// checkpoints stays what the training made it, and validate, inspect, restore and --init-path open
// an average as they open any run:
//
//   RUN_DIR/averages/mean-3-epochs/config.toml
//                                  checkpoints/ckpt-46860
//   RUN_DIR/averages/exponential-0.99/...
//
// All tensors of numbers with a fraction are averaged, running statistics and the update's slots
// too; in double, stored as float32. Others are those of the last checkpoint. An average depends on
// the checkpoints that the cadence of the configuration asks for alone: those of interruptions have
// no part in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/update_rule.hpp"
#include "io/checkpoint.hpp"
#include "models/graph.hpp"
#include "train/config.hpp"

namespace millrace::train {

enum class AverageMode {
  Mean,        ///< sum / count
  Exponential  ///< the first one, then decay x old + (1 - decay) x new
};

/// How checkpoints are averaged, and what the result is called.
struct AverageRule {
  std::string name;  ///< of the directory, and in validation.csv
  AverageMode mode = AverageMode::Mean;
  double decay = 0.0;
  friend bool operator==(const AverageRule&, const AverageRule&) = default;
};

struct PlannedAverage {
  AverageRule rule;
  std::vector<std::int64_t> iterations;  ///< of its checkpoints, ascending
  friend bool operator==(const PlannedAverage&, const PlannedAverage&) = default;
};

/// What the end of a training averages. Of the last n epochs those checkpoints are taken that were
/// saved behind more than E - n of the run's E epochs; a final one that is off the cadence counts
/// the end of the run twice and is left out. Running means take all. Errors: Config, with what to
/// change, when the run saves or keeps too few checkpoints or has no directory.
[[nodiscard]] std::vector<PlannedAverage> planned_averages(const TrainConfig& config);

/// Host memory that averaging takes, for a network with the slots of a rule.
[[nodiscard]] std::int64_t averaging_bytes(const models::Graph& graph, UpdateRule rule);

/// A mean that grows checkpoint by checkpoint.
class TensorMean {
 public:
  explicit TensorMean(AverageRule rule) : rule_(std::move(rule)) {}

  /// Errors: Checkpoint, naming a tensor that differs in name or shape from those before.
  void add(const io::CheckpointReader& checkpoint);
  /// The mean as float32, of at least one checkpoint; nothing can be added any more. The tensors
  /// lie in this object.
  [[nodiscard]] std::vector<io::NamedTensor> finish();

 private:
  void begin(const io::CheckpointReader& checkpoint);
  void check(const io::CheckpointReader& checkpoint) const;
  void take(std::span<double> mean, std::span<const float> values) const;

  AverageRule rule_;
  std::int64_t count_ = 0;
  std::vector<io::TensorInfo> infos_;
  std::vector<std::vector<double>> sums_;       ///< empty for what is not averaged
  std::vector<std::vector<std::byte>> latest_;  ///< the reverse
  std::vector<std::byte> buffer_;
  std::filesystem::path first_;
};

/// Averages `checkpoints`, in their order, into RUN_DIR/averages/<rule.name>, in place of what it
/// held before; returns the path of the new checkpoint. Errors: Checkpoint, Io.
std::filesystem::path average_checkpoints(std::span<const std::filesystem::path> checkpoints,
                                          const AverageRule& rule,
                                          const std::filesystem::path& run_directory);

/// Where the checkpoints of these iterations are. Errors: Checkpoint, naming those that are
/// missing.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_at(
    const std::filesystem::path& run_directory, std::span<const std::int64_t> iterations);

}  // namespace millrace::train
