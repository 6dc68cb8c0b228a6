// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "comm/world.hpp"
#include "core/clock.hpp"
#include "io/checkpoint.hpp"
#include "io/data/dataset.hpp"
#include "run/run.hpp"
#include "train/busy_shares.hpp"
#include "train/memory.hpp"
#include "train/metrics_log.hpp"
#include "train/progress.hpp"
#include "train/session.hpp"
#include "train/slow_devices.hpp"
#include "train/statistics.hpp"
#include "train/summaries.hpp"
#include "train/trace.hpp"
#include "train/trainer.hpp"

namespace millrace::training {

/// What a run tells people: lines on the console and in log.txt, the CSV files, the status line,
/// the table of times and the trace. Every rank has a reporter, but only rank 0 prints and writes;
/// functions marked collective gather what the other ranks know.
class Reporter {
 public:
  /// The references must outlive this.
  Reporter(const run::Run& config, const comm::World& world, const TrainInputs& inputs);

  /// From now on steps of this session, whose first iteration is `first`, are counted and traced.
  /// `session` must outlive this. Collective. Errors: Io, if the trace cannot be written.
  void follow(const Session& session, std::int64_t first);
  /// Opens the log files of a new run, or those of a run that continues from a checkpoint. On rank
  /// 0 only. Errors: Io.
  void open_log();
  void continue_log(const io::CheckpointHeader& checkpoint);

  void line(std::string_view text) { console_.line(spelled(text)); }
  /// A line with the text of every rank. Collective.
  void line_by_rank(const std::string& text);
  /// A line that `quiet` prints, too: a warning, or what the run has come to.
  void important(std::string_view text) { console_.important(spelled(text)); }
  /// A checkpoint is complete. On rank 0.
  void saved(const std::filesystem::path& checkpoint);
  /// A checkpoint of this name is being written; "": none is.
  void saving(std::string name) { saving_ = std::move(name); }
  /// Shows that in the status line, where nothing else is shown.
  void show_saving() { show("saving " + saving_); }
  /// How busy the devices are in the status line; after follow().
  [[nodiscard]] const BusyShares& busy() const { return *busy_; }
  /// Adds how busy all devices were in the update after which `done` are done. Names those that
  /// take longer than others.
  void add_busy(std::int64_t done, std::span<const std::int64_t> thousandths);
  /// The lines at the start of a run: its configuration, the machine, the memory of each rank.
  /// Collective.
  void announce(const Session& session, const TrainInputs& inputs,
                const partition::ProcessMemory& forecast);

  /// Shows something that takes a while in the status line.
  void show(std::string_view text) { console_.status(text, process_seconds()); }
  /// The clock of the rates in the status line starts, and log lines follow.
  void begin_training();
  /// Whether the kernels of this weight update, from 1, are traced.
  [[nodiscard]] bool times_kernels(std::int64_t step) const {
    return trace_ && trace_->times_kernels(step);
  }
  /// The session has run a step in `seconds`. `done` counts the updates with this one.
  void add_step(std::int64_t done, double seconds);
  /// The same step's results: counts them in the log, and keeps them for the status line.
  void add_iteration(std::int64_t done, const IterationResult& result);
  /// Shows how far the training is in the status line.
  void show_progress() { show(format_status(config_, progress_, console_.terminal())); }
  /// Ends a row of the log and prints it.
  void end_row(std::int64_t done);
  /// Logs and prints a validation.
  void add_validation(const ValidationResult& result);

  /// The part of the log that a checkpoint must contain, and the rows on disk that it relies on.
  [[nodiscard]] std::string log_state() const;
  void sync();
  /// Validation accuracies of the run's own weights by iteration, in percent: those of as many
  /// images as the last one. Of rank 0.
  [[nodiscard]] std::map<std::int64_t, double> accuracies() const {
    return comparable(accuracies_);
  }

  /// Writes to log.txt which images any rank has replaced since the last call for this `use`; a
  /// terminal has shown it already. Returns the total number, on rank 0. Collective.
  std::int64_t note_bad_images(const io::Dataset& dataset, const std::string& use);
  /// The same, and prints the number of them. Collective.
  void report_bad_images(const io::Dataset& dataset, const std::string& use);
  /// How the devices spent their time, if there are several; writes the trace. Collective.
  void report_pipeline();
  /// The last lines of a run after `done` updates. On rank 0 only. Errors: Io.
  void summarise(bool finished, std::int64_t done);
  /// Skipped updates, and the final loss scale if it is dynamic.
  void report_scaling(const ScalingState& scaling);

 private:
  void write_trace(const PipelineReport& report) const;
  void keep_speed(int rank, double factor);

  [[nodiscard]] std::string spelled(std::string_view text) const {
    return voice_.spell ? voice_.spell(std::string(text)) : std::string(text);
  }

  const run::Run& config_;
  const comm::World& world_;
  const Voice& voice_;
  const Callbacks& callbacks_;
  const OpenSummaries open_summaries_;
  Console console_;
  std::optional<MetricsLog> log_;         ///< on rank 0
  std::unique_ptr<Summaries> summaries_;  ///< likewise, with `enable-tensorboard`
  SummaryRows summary_rows_;
  Accuracies accuracies_;
  std::int64_t set_images_ = 0;                              ///< for validation
  std::map<std::string, std::set<std::string>> bad_images_;  ///< lines by use; on rank 0
  std::optional<PipelineStatistics> statistics_;
  std::optional<Trace> trace_;
  std::optional<BusyShares> busy_;
  std::optional<SlowDevices> slow_;
  std::vector<double> speeds_;      ///< of the ranks, for the next start of an elastic run
  std::vector<std::string> hosts_;  ///< by rank; on rank 0
  Status progress_;
  std::string saving_;
  std::optional<double> bubble_;  ///< measured, on several devices
  std::int64_t first_iteration_ = 0;
  Timer training_;
};

/// What callbacks are told of a validation.
[[nodiscard]] Validated told(const ValidationResult& result);

}  // namespace millrace::training
