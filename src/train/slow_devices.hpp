// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "pipeline/pipeline_plan.hpp"

namespace millrace::training {

/// A device that works longer than those that have the same stages in the other replicas.
struct SlowDevice {
  std::int32_t replica = 0;
  std::int32_t device = 0;
  double factor = 1.0;  ///< its time divided by the median of the others
  bool slow = true;     ///< false: it was, and is no longer
};

/// Compares the devices of replicas over windows of updates. As all of them wait for each other,
/// the share of a step in which a device works tells its speed. Pauses of a single update do not
/// count for much.
class SlowDevices {
 public:
  static constexpr int kWindow = 50;      ///< updates
  static constexpr double kFactor = 1.4;  ///< from which on a device is slow
  static constexpr double kAgain = 1.2;   ///< below which it is no longer

  explicit SlowDevices(const pipeline::RankMap& map);
  /// Adds the shares of all devices in an update, in any unit, numbered replica by replica. Returns
  /// what changed at the end of a window.
  [[nodiscard]] std::vector<SlowDevice> add(std::span<const std::int64_t> shares);

 private:
  std::int32_t devices_;  ///< of a replica
  std::int32_t replicas_;
  std::vector<double> sums_;
  std::vector<bool> slow_;
  int updates_ = 0;
};

/// The speeds of the ranks of a run, as far as they were found to be slow, for the next start: what
/// SlowDevices found, on top of those that the ranks were given work by. In the run directory.
/// Returns why that failed, or "": no run ends for it.
[[nodiscard]] std::string keep_speeds(const std::filesystem::path& run_directory,
                                      std::span<const double> speeds);
/// Empty if nothing was found since drop_speeds().
[[nodiscard]] std::vector<double> kept_speeds(const std::filesystem::path& run_directory);
void drop_speeds(const std::filesystem::path& run_directory);

}  // namespace millrace::training
