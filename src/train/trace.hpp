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

/// Records of the steps [first, last] of a run, both included and counted from 1, kept in memory
/// that is taken beforehand; then written as one trace of all ranks in Chrome's JSON format, which
/// Perfetto and chrome://tracing show: a row a device, arrows from sends to what read them.
class Trace {
 public:
  Trace(const pipeline::Executor& executor, std::int64_t first, std::int64_t last);
  void add(const pipeline::Executor& executor, std::int64_t step);
  [[nodiscard]] std::int64_t steps() const { return std::ssize(steps_); }
  /// Rank 0 writes the file. Collective. Errors: Io.
  void write(const comm::World& world, const std::filesystem::path& file) const;
  /// The last step as a picture, above what the same schedule would be with the costs in `report`.
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
  std::vector<std::int64_t> steps_;  ///< one for each executor's worth of records
};

}  // namespace millrace::train
