// SPDX-License-Identifier: Apache-2.0
//
// The files in which a run records its progress, besides checkpoints:
//
//   training.csv     one row per log point, the recipe's columns; accuracies in percent
//   validation.csv   one row per validation; `name` is that of an average of checkpoints, empty
//                    for the run's own weights; `val_size` is the number of images
//   metrics.jsonl    a header line, then one object per log point or validation; accuracies as
//                    fractions
//
// A row of training.csv covers the iterations since the previous row. `loss_batch` and
// `train_acc_batch` are their means; `loss_avg` and `train_acc_avg` are the means over the rows of
// the last epoch. Numbers are written in the shortest form that reads back as the same double. A
// restored run rebuilds its averages from the existing rows. Except for the time columns, the CSV
// of an interrupted run therefore equals that of an uninterrupted one.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "run/run.hpp"
#include "train/line_file.hpp"

namespace millrace::training {

/// The iterations since the last row, and the time of the run. The only state of the log that must
/// be kept in a checkpoint.
struct PartialRow {
  std::int64_t iterations = 0;
  double loss_sum = 0.0;
  std::int64_t correct = 0;
  std::int64_t correct_top5 = 0;
  std::int64_t left_out = 0;   ///< iterations whose loss was not finite
  double total_seconds = 0.0;  ///< of the run so far; 0 in early checkpoints
  friend bool operator==(const PartialRow&, const PartialRow&) = default;
};
[[nodiscard]] std::string to_json(const PartialRow& partial);
/// The inverse, of a checkpoint after `iteration` iterations; an empty text is an empty row.
/// Error(Checkpoint) for anything else.
[[nodiscard]] PartialRow parse_partial_row(std::string_view text, std::int64_t iteration);

/// The result of one weight update, computed before the update.
struct IterationResult {
  double loss = 0.0;              ///< mean over the samples, unscaled; not averaged if not finite
  std::int64_t correct = 0;       ///< samples with a correct first guess
  std::int64_t correct_top5 = 0;  ///< samples with a correct guess among the first five
  double learning_rate = 0.0;
  double seconds = 0.0;  ///< wall time of the iteration
  double loss_scale = 1.0;
  std::int64_t skipped = 0;  ///< skipped updates of the run so far
};

struct TrainRow {
  std::int64_t step = 0;  ///< number of the row, from 1
  std::int64_t iteration = 0;
  double epoch = 0.0;
  double learning_rate = 0.0;  ///< of the last update in the row
  double loss = 0.0;
  double loss_average = 0.0;
  double accuracy = 0.0;  ///< percent
  double accuracy_average = 0.0;
  double top5 = 0.0;          ///< percent; always 100 with at most five classes
  double top5_average = 0.0;  ///< NaN if it is not known of all rows of the last epoch
  double seconds_per_iteration = 0.0;
  double images_per_second = 0.0;
  double total_seconds = 0.0;  ///< of the run so far: start-up, validations, earlier processes
  double loss_scale = 1.0;     ///< of the last update in the row
  std::int64_t skipped = 0;    ///< skipped updates of the run so far
};

/// One pass over the validation set, or over a part of it.
struct ValidationResult {
  std::int64_t iteration = 0;   ///< of the weights validated
  std::string name = {};        ///< of an average of checkpoints; "" for the run's own weights
  std::string checkpoint = {};  ///< name of the one that holds the weights; "": none does
  std::int64_t images = 0;
  std::int64_t set_images = 0;  ///< of the whole set; 0: as many
  std::int64_t replaced = 0;    ///< of the images: bad ones, in whose place others were counted
  std::int64_t batches = 0;
  std::int64_t correct_top1 = 0;
  std::int64_t correct_top5 = 0;
  double loss = 0.0;
  double seconds = 0.0;
  [[nodiscard]] double top1() const { return fraction(correct_top1); }
  [[nodiscard]] double top5() const { return fraction(correct_top5); }
  [[nodiscard]] double images_per_second() const;
  [[nodiscard]] double latency_ms() const;  ///< per batch
  [[nodiscard]] bool is_partial() const { return set_images > images; }

 private:
  [[nodiscard]] double fraction(std::int64_t correct) const {
    return static_cast<double>(correct) / static_cast<double>(images);
  }
};

/// The top-1 accuracy of a validation, and of how many images.
struct Accuracy {
  double percent = 0.0;
  std::int64_t images = 0;  ///< 0: unknown, from an early version
  friend bool operator==(const Accuracy&, const Accuracy&) = default;
};
/// By iteration.
using Accuracies = std::map<std::int64_t, Accuracy>;

/// The percentages that may be compared with the last one: those of as many images.
[[nodiscard]] std::map<std::int64_t, double> comparable(const Accuracies& accuracies);

/// The accuracies in the validation.csv of a run: of its own weights, or of the average of this
/// name. Empty if there is no such file. Errors: Io, also for more than a million rows.
[[nodiscard]] Accuracies read_accuracies(const std::filesystem::path& run_directory,
                                         std::string_view name = "");

/// Averages the results of iterations and writes the three files. With an empty
/// config.run_directory it only averages. Errors: Io, naming the file.
class MetricsLog {
 public:
  /// The seconds since the start of the process.
  using Clock = double (*)();

  /// A new run.
  explicit MetricsLog(const run::Run& config, Clock clock = process_seconds);
  /// A run restored at `iteration`. Later rows, left by a process that was killed later, are
  /// removed, and the files are continued. Damaged rows are left out: see take_notices().
  MetricsLog(const run::Run& config, std::int64_t iteration, const PartialRow& partial,
             Clock clock = process_seconds);

  /// Counts one iteration; allocates nothing.
  void add(const IterationResult& result) noexcept;
  /// Ends a row after `iteration` updates; writes and returns it.
  TrainRow report(std::int64_t iteration);
  void report(const ValidationResult& result);

  [[nodiscard]] PartialRow partial() const;
  /// Seconds of the run: of this process, and of earlier ones up to the checkpoint it went on from.
  [[nodiscard]] double total_seconds() const { return earlier_seconds_ + clock_(); }
  /// Images per second of the iterations of this process, without the first.
  [[nodiscard]] double images_per_second() const;
  /// Notes something that happened, in words.
  void note(std::int64_t iteration, const std::string& event);
  /// Notes how the process ended. A finished run notes its total time once more as time_to_train.
  void end(std::int64_t iteration, bool finished);
  /// Messages since the last call: one for each file from which damaged rows were left out or that
  /// was removed or replaced during the run.
  [[nodiscard]] std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  /// Returns when all rows are on disk. Called before a checkpoint, which relies on them.
  void sync();

 private:
  struct WindowRow {
    std::int64_t first_iteration;  ///< updates done before the first one of the row
    std::int64_t last_iteration;
    double loss;
    double accuracy;
    double top5;  ///< NaN if it is not known
  };
  struct Files {
    LineFile training;
    LineFile validation;
    LineFile json;
  };

  void open(const run::Run& config, LineFile::Open how);
  void write(LineFile& file, std::string_view line);
  void read_rows(const std::filesystem::path& run_directory);
  void read_top5(const std::filesystem::path& metrics);
  void drop_old_rows(std::int64_t iteration);
  void average(TrainRow& row);
  [[nodiscard]] double images(std::int64_t iterations) const noexcept;

  std::int64_t total_batch_;
  std::int64_t train_size_;
  std::int64_t iterations_per_epoch_;
  std::optional<Files> files_;
  std::vector<std::string> notices_;
  std::deque<WindowRow> window_;
  PartialRow partial_;
  std::int64_t rows_ = 0;
  std::int64_t last_reported_ = 0;
  double learning_rate_ = 0.0;
  double loss_scale_ = 1.0;
  std::int64_t skipped_ = 0;
  Clock clock_;
  double earlier_seconds_ = 0.0;  ///< of earlier processes
  double all_seconds_ = 0.0;      ///< of the iterations of this process, without the first
  std::int64_t all_iterations_ = 0;
  /// Timing since the last row, without the first iteration of the process, which includes
  /// start-up.
  double timed_seconds_ = 0.0;
  std::int64_t timed_iterations_ = 0;
  double first_seconds_ = 0.0;  ///< of that first iteration, for a row without any other
  bool first_iteration_ = true;
};

}  // namespace millrace::training
