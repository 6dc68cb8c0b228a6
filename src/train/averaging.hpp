// SPDX-License-Identifier: Apache-2.0
//
// Averages of a run's checkpoints, which often validate better than the last one (Izmailov et al.,
// arXiv 1803.05407). Each average is a run directory below the run. The run's own list of
// checkpoints does not change, and validate, inspect, restore and `init-path` open an average like
// any other run:
//
//   RUN_DIR/averages/mean-3-epochs/config.toml
//                                  checkpoints/ckpt-46860
//   RUN_DIR/averages/exponential-0.99/...
//
// All floating-point tensors are averaged, including running statistics and optimizer state; the
// sum is kept in double and stored as float32. All other tensors are copied from the last
// checkpoint. Only the checkpoints of the configured cadence are averaged, not those written
// because of an interruption.
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
#include "run/run.hpp"

namespace millrace::training {

enum class AverageMode {
  Mean,        ///< sum / count
  Exponential  ///< the first one, then decay x old + (1 - decay) x new
};

/// How checkpoints are averaged, and the name of the result.
struct AverageRule {
  std::string name;  ///< of the directory; also in validation.csv
  AverageMode mode = AverageMode::Mean;
  double decay = 0.0;
  friend bool operator==(const AverageRule&, const AverageRule&) = default;
};

struct PlannedAverage {
  AverageRule rule;
  std::vector<std::int64_t> iterations;  ///< of its checkpoints, ascending
  friend bool operator==(const PlannedAverage&, const PlannedAverage&) = default;
};

/// The averages that are made at the end of a training. An average over the last n of E epochs
/// takes the checkpoints saved after more than E - n epochs. A final checkpoint off the cadence is
/// left out, as it would count the end of the run twice. Exponential averages take all checkpoints
/// but ckpt-0, whose weights are untrained.
/// Errors: Config, with what to change, if the run saves or keeps too few checkpoints or has no
/// directory.
[[nodiscard]] std::vector<PlannedAverage> planned_averages(const run::Run& config);

/// Host memory needed to average checkpoints of a training of this network.
[[nodiscard]] std::int64_t averaging_bytes(const models::Graph& graph, const run::Run& config);
/// Name of the moving average over updates: of its folder, and in validation.csv.
[[nodiscard]] std::string ema_name(const run::Run& config);
/// Where the average of this name is kept: a run directory below the run.
[[nodiscard]] std::filesystem::path place_of_average(const std::filesystem::path& run_directory,
                                                     const std::string& name);

/// Averages `checkpoints`, in order, into RUN_DIR/averages/<rule.name>, replacing its earlier
/// contents. Returns the path of the new checkpoint. Errors: Checkpoint, Io.
std::filesystem::path average_checkpoints(std::span<const std::filesystem::path> checkpoints,
                                          const AverageRule& rule,
                                          const std::filesystem::path& run_directory);

/// "the average of 2 checkpoints (ckpt-10, ckpt-20)"; of many only the first and the last.
[[nodiscard]] std::string describe_average(std::span<const std::filesystem::path> checkpoints);

/// The paths of the checkpoints of these iterations. Errors: Checkpoint, naming the missing ones.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_at(
    const std::filesystem::path& run_directory, std::span<const std::int64_t> iterations);

}  // namespace millrace::training
