// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "io/events/event_file.hpp"
#include "run/run.hpp"
#include "train/metrics_log.hpp"

namespace millrace::train {

/// The event files of a run: training in the run directory, validations in `eval` below it, as
/// Habana's Keras trainer lays them out and with its tags. Accuracies are fractions. The step is
/// the number of weight updates. Errors: Io.
class Summaries {
 public:
  /// A new run, or one restored at iteration `restored`: what a killed process wrote after it is
  /// removed.
  explicit Summaries(const run::Run& config, std::optional<std::int64_t> restored = std::nullopt);

  /// With `summary-every`: one update; writes its numbers if it is due.
  void add(std::int64_t done, const IterationResult& result);
  /// Without: a row of the log.
  void add(const TrainRow& row);
  void add(const ValidationResult& result);
  /// The run is complete, after so many seconds of all its processes.
  void end(std::int64_t done, double seconds);
  /// Returns when everything written has reached the disk.
  void sync() const;

 private:
  void add_training(const TrainRow& row);

  double total_batch_;
  std::int64_t every_;
  io::EventFile training_;
  std::optional<io::EventFile> validation_;
  double seconds_ = 0.0;  ///< of the updates since the last summary
  std::int64_t updates_ = 0;
};

}  // namespace millrace::train
