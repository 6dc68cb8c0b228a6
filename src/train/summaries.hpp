// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "io/foreign_files.hpp"
#include "run/run.hpp"
#include "train/metrics_log.hpp"

namespace millrace::training {

/// The numbers of a run for a program that displays them, such as TensorBoard. A tool writes them;
/// the trainer is given how to open them. Errors of all: Io.
class Summaries {
 public:
  Summaries() = default;
  Summaries(const Summaries&) = delete;
  Summaries& operator=(const Summaries&) = delete;
  virtual ~Summaries() = default;

  /// Updates up to `row.iteration`: a row of the log, or with `summary-every` one of SummaryRows.
  virtual void add(const TrainRow& row) = 0;
  virtual void add(const ValidationResult& result) = 0;
  /// The run is complete, after so many seconds of all its processes.
  virtual void end(std::int64_t done, double seconds) = 0;
  /// Returns when everything written has reached the disk.
  virtual void sync() const = 0;
};

/// Opens those of a new run, or of one restored at iteration `restored`: what a killed process
/// wrote after it is removed.
using OpenSummaries = std::unique_ptr<Summaries> (*)(const run::Run& config,
                                                     std::optional<std::int64_t> restored);

/// What tools do for the trainer: guests, which it runs without.
struct Guests {
  OpenSummaries summaries = nullptr;  ///< nullptr: there is none
  io::ForeignFiles files = {};
};
/// Those that this program or library is built with. The build defines it, from MILLRACE_TOOLS:
/// src/tools/CMakeLists.txt.
[[nodiscard]] Guests built_guests();

/// Makes rows of the updates of a run with `summary-every`.
class SummaryRows {
 public:
  explicit SummaryRows(const run::Run& config);

  /// One update. Returns the row that it completes; never without `summary-every`.
  [[nodiscard]] std::optional<TrainRow> add(std::int64_t done, const IterationResult& result);

 private:
  double total_batch_;
  std::int64_t every_;
  double seconds_ = 0.0;  ///< of the updates since the last row
  std::int64_t updates_ = 0;
};

}  // namespace millrace::training
