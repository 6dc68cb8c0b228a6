// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/simulate.hpp"

namespace millrace::train {

/// Where a device's time went, in seconds over the steps that were counted.
struct DeviceTimes {
  double forward = 0.0;
  double backward = 0.0;
  double update = 0.0;
  double reduce = 0.0;  ///< sums over the replicas, and waiting for them
  double receive_wait = 0.0;
  double send_wait = 0.0;
  double load_wait = 0.0;
  double total = 0.0;
  [[nodiscard]] double busy() const { return forward + backward + update; }
  [[nodiscard]] double idle() const {
    return total - busy() - reduce - receive_wait - send_wait - load_wait;
  }
};

struct PipelineReport {
  std::vector<DeviceTimes> devices;  ///< replica by replica
  pipeline::Costs costs;             ///< measured, of one micro-batch and stage
  double step_seconds = 0.0;
  double measured_bubble = 0.0;
  double simulated_bubble = 0.0;  ///< of the same schedule with the measured costs
  double simulated_seconds = 0.0;
  double bound_seconds = 0.0;  ///< that no schedule of these stages can beat
  std::int64_t steps = 0;
};

/// Adds up what the records of an executor say, step by step, without allocating.
class PipelineStatistics {
 public:
  explicit PipelineStatistics(const pipeline::Executor& executor);
  /// The last step of the executor took `seconds` from its begin until all ranks were through.
  void add(const pipeline::Executor& executor, double seconds);
  /// Over all ranks. Collective. `links` as the schedule was made with.
  [[nodiscard]] PipelineReport report(const comm::World& world,
                                      std::span<const pipeline::Link> links) const;

 private:
  const pipeline::PipelinePlan* plan_;
  std::vector<DeviceTimes> devices_;
  std::vector<bool> held_;                ///< devices of this rank
  std::vector<pipeline::StageCost> sum_;  ///< by stage, over replicas of this rank and steps
  std::vector<double> count_;             ///< micro-batches behind them
  std::int64_t steps_ = 0;
};

/// A table with a row a device, and the bubble behind it.
[[nodiscard]] std::string to_text(const PipelineReport& report, const pipeline::PipelinePlan& plan);

}  // namespace millrace::train
