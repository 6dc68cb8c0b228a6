// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pipeline/schedule/simulate.hpp"

namespace millrace::report {

/// How a device spent a step, in shares of its time.
struct DeviceShares {
  std::string name = {};  ///< "replica 0 device 1 (rank 1)"
  double forward = 0.0;
  double backward = 0.0;
  double update = 0.0;
  double reduce = 0.0;
  double messages = 0.0;  ///< to start sends and receives, not to wait for them
  double wait = 0.0;

  /// Belongs to no action in the trace: before the first and after the last of the device, and what
  /// is too short to be shown.
  [[nodiscard]] double other() const {
    return std::max(0.0, 1.0 - forward - backward - update - reduce - messages - wait);
  }
};

/// The last step of replica 0 in a trace. The time line has work only.
struct TracedStep {
  std::int64_t number = 0;
  pipeline::TimeLine line = {};
  std::vector<DeviceShares> devices = {};
};

/// Whether the step has the devices, stages and micro-batches of a planned one, which is empty for
/// a single stage. The trace may be that of an earlier process, before the run was restored in
/// another layout.
[[nodiscard]] bool has_layout_of(const pipeline::TimeLine& planned, const TracedStep& traced);

/// Reads a file that `train --trace FILE.json` wrote. Errors: Data if it has no step; Io.
[[nodiscard]] TracedStep read_trace(const std::filesystem::path& file);

}  // namespace millrace::report
