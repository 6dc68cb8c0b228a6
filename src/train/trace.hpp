// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/simulate.hpp"
#include "train/statistics.hpp"

namespace millrace::train {

/// Keeps the records of the steps [first, last] of a run (from 1, inclusive) in memory allocated
/// beforehand, and writes them as one trace of all ranks in Chrome's JSON format. Perfetto and
/// chrome://tracing display it with one row per device and arrows from sends to their readers.
class Trace {
 public:
  Trace(const pipeline::Executor& executor, std::int64_t first, std::int64_t last);
  void add(const pipeline::Executor& executor, std::int64_t step);
  [[nodiscard]] std::int64_t steps() const { return std::ssize(steps_); }
  /// Writes the file on rank 0. Collective. Errors: Io.
  void write(const comm::World& world, const std::filesystem::path& file) const;
  /// Draws the last step above a simulation of the same schedule with the costs in `report`.
  /// Collective; rank 0 writes the file.
  void draw(const comm::World& world, const PipelineReport& report,
            std::span<const pipeline::Link> links, const std::filesystem::path& file) const;

 private:
  [[nodiscard]] pipeline::TimeLine last_step(const comm::World& world) const;
  [[nodiscard]] std::string events(std::int64_t clock_offset) const;

  const pipeline::Executor* executor_;
  std::int64_t first_;
  std::int64_t last_;
  std::vector<pipeline::ActionRecord> records_;
  std::vector<std::int64_t> steps_;  ///< one for each set of the executor's records
};

}  // namespace millrace::train
