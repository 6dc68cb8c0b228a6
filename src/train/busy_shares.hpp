// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/executor.hpp"

namespace millrace::training {

/// The share of its time in which each device works; for the status line of a pipeline, a running
/// mean over the last steps.
class BusyShares {
 public:
  /// `executor` must outlive this.
  explicit BusyShares(const pipeline::Executor& executor);

  /// Number of devices of all replicas, or 0.
  [[nodiscard]] std::size_t devices() const { return devices_; }
  /// Writes the shares of this process' devices in the executor's last step, in thousandths. The
  /// others stay as they are.
  void own(std::span<std::int64_t> thousandths) const;
  /// Adds the shares of all processes in a step.
  void add(std::span<const std::int64_t> thousandths);
  /// By device of a pipeline, over all replicas; none before the first step.
  [[nodiscard]] std::vector<double> shares() const {
    return any_ ? shares_ : std::vector<double>();
  }

 private:
  const pipeline::Executor* executor_;
  std::size_t devices_ = 0;
  std::vector<double> shares_;
  bool any_ = false;
};

}  // namespace millrace::training
