// SPDX-License-Identifier: Apache-2.0
//
// src/report: a page about runs, from the files that they left.
//
//   run_record     what the logs and checkpoints of a run directory say
//   traced_step    a step of the run as its trace shows it
//   chart          curves as SVG
//   host_line      which hosts a supervised run had, as SVG
//   page           the page: sections about curves, the network, the schedule, the run
//
// Only values come in, the plan among them, and only text comes out: nothing here computes a
// configuration or a plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/report/host_line.hpp"

namespace millrace::report {

/// A row of the log. NaN where the file has no number.
struct TrainPoint {
  std::int64_t iteration = 0;
  double epoch = 0.0;
  double loss = 0.0;
  double top1 = 0.0;  ///< percent
  double rate = 0.0;
  double images_per_second = 0.0;
  double loss_scale = 0.0;
  std::int64_t skipped = 0;  ///< skipped updates so far
};

struct ValidationPoint {
  std::int64_t iteration = 0;
  double epoch = 0.0;
  double loss = 0.0;
  double top1 = 0.0;  ///< percent
  double top5 = 0.0;
  std::string name;         ///< of an average of checkpoints; "" for the run's own weights
  std::int64_t images = 0;  ///< if it saw only a part of the set; 0: all
};

/// "restored", "stopped", "finished".
struct Event {
  std::int64_t iteration = 0;
  std::string what;
  std::optional<double> seconds;  ///< of the run so far
  std::optional<double> images_per_second;
};

struct SavedCheckpoint {
  std::int64_t iteration = 0;
  std::uintmax_t bytes = 0;
};

/// Running: a process holds the run. Unfinished: the last one ended without a word.
enum class RunState { Running, Finished, Stopped, Unfinished };

struct RunRecord {
  std::filesystem::path directory;
  std::string name;
  std::int64_t total_batch = 0;  ///< 0: unknown, as the next
  std::int64_t iterations = 0;   ///< of the whole run
  RunState state = RunState::Unfinished;
  std::vector<TrainPoint> training;
  std::vector<ValidationPoint> validations;
  std::vector<Event> events;
  std::vector<SupervisorEvent> supervised;   ///< empty without --elastic
  std::vector<SavedCheckpoint> checkpoints;  ///< those that are there
  std::int64_t checkpoints_written = 0;      ///< as log.txt says
  std::optional<double> seconds;             ///< of the run so far
  std::optional<double> bubble;              ///< percent, of the last process that trained
  std::filesystem::path trace;               ///< as log.txt says, or in the directory; "": none
  std::vector<std::string> machine;          ///< lines of log.txt about the last process
  std::vector<std::string> notes;            ///< what is missing or damaged, one line each

  /// Updates done.
  [[nodiscard]] std::int64_t done() const;
  /// Of the run's own weights; nullptr without validation. The best of those of as many images as
  /// the last one.
  [[nodiscard]] const ValidationPoint* best() const;
  [[nodiscard]] const ValidationPoint* last() const;
  /// While training: of the last process that trained, as a whole if it ended, otherwise of the
  /// last row.
  [[nodiscard]] std::optional<double> images_per_second() const;
};

/// Reads what is there; damaged lines are left out and noted. Errors: Usage if the directory is not
/// that of a run; Io.
[[nodiscard]] RunRecord read_run(const std::filesystem::path& directory);

}  // namespace millrace::report
