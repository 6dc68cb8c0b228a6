// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "pipeline/executor.hpp"

namespace millrace::train {

/// Records of the steps [first, last] of a run, both included and counted from 1, kept in memory
/// that is taken beforehand; then written as one trace of all ranks in Chrome's JSON format, which
/// Perfetto and chrome://tracing show: a row a device, arrows from sends to what read them.
class Trace {
 public:
  Trace(const pipeline::Executor& executor, std::int64_t first, std::int64_t last);
  void add(const pipeline::Executor& executor, std::int64_t step);
  /// Rank 0 writes the file. Collective. Errors: Io.
  void write(const comm::World& world, const std::filesystem::path& file) const;

 private:
  [[nodiscard]] std::string events(std::int64_t clock_offset) const;

  const pipeline::Executor* executor_;
  std::int64_t first_;
  std::int64_t last_;
  std::vector<pipeline::ActionRecord> records_;
  std::vector<std::int64_t> steps_;  ///< one for each executor's worth of records
};

}  // namespace millrace::train
