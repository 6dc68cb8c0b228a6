// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::training {

/// How a device spent its time, in seconds over the counted steps.
struct DeviceTimes {
  double forward = 0.0;
  double backward = 0.0;
  double update = 0.0;  ///< and the packing of the new weights
  double reduce = 0.0;  ///< sums over replicas, including waiting for them
  double receive_wait = 0.0;
  double send_wait = 0.0;
  double load_wait = 0.0;   ///< for images
  double ranks_wait = 0.0;  ///< for the slowest rank, before the update
  double total = 0.0;
  [[nodiscard]] double busy() const { return forward + backward + update; }
  [[nodiscard]] double idle() const {
    return total - busy() - reduce - receive_wait - send_wait - load_wait - ranks_wait;
  }
};

struct PipelineReport {
  std::vector<DeviceTimes> devices;  ///< by replica, then device
  pipeline::Costs costs;             ///< of work alone, measured, per micro-batch and stage
  double step_seconds = 0.0;
  double measured_bubble = 0.0;
  double simulated_bubble = 0.0;  ///< of the same schedule with the measured costs
  double simulated_seconds = 0.0;
  double bound_seconds = 0.0;  ///< lower bound for any schedule of these stages
  std::int64_t steps = 0;
};

/// Adds up the records of an executor step by step, without allocating.
class PipelineStatistics {
 public:
  /// `executor` must outlive this.
  explicit PipelineStatistics(const pipeline::Executor& executor);
  /// Adds the executor's last step, which took `seconds` until all ranks had finished it.
  void add(double seconds);
  /// Totals over all ranks. Collective.
  [[nodiscard]] PipelineReport report(const comm::World& world) const;

 private:
  const pipeline::Executor* executor_;
  std::vector<DeviceTimes> devices_;
  std::vector<bool> held_;                ///< devices of this rank
  std::vector<pipeline::StageCost> sum_;  ///< by stage, over steps and this rank's replicas
  std::vector<double> count_;             ///< micro-batches in each sum
  std::int64_t steps_ = 0;
};

/// A table with one row per device, followed by the bubble.
[[nodiscard]] std::string to_text(const PipelineReport& report, const pipeline::PipelinePlan& plan);

}  // namespace millrace::training
