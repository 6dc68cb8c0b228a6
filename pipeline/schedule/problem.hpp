// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

/// Input of generate_auto: costs of the stages, which may differ, and limits of memory.
struct AutoRequest {
  Costs costs;  ///< of all stages
  std::int32_t micro_batches = 1;
  bool split_backward = false;          ///< BackwardInput and BackwardWeight in place of Backward
  std::vector<std::int32_t> device_of;  ///< by stage; empty: stage s on device s
  std::vector<Link> links;              ///< empty: each stage feeds the next
  /// Maximum number of micro-batches between their forward and the end of their backward, by stage,
  /// counted as in `stash_peaks`; empty: no limit.
  std::vector<std::int32_t> stash_limit;
  /// Maximum bytes of `StageCost::stash_bytes` held by a device, counted likewise, by device;
  /// empty: no limit.
  std::vector<double> byte_limit;
};

using Caps = std::vector<std::int32_t>;

/// A checked AutoRequest with all defaults filled in. Errors: as generate_auto.
class ScheduleProblem {
 public:
  explicit ScheduleProblem(const AutoRequest& request);

  [[nodiscard]] std::int32_t devices() const { return static_cast<std::int32_t>(stages_on.size()); }
  [[nodiscard]] std::int32_t device(std::int32_t stage) const {
    return device_of[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] const StageCost& cost(std::int32_t stage) const {
    return costs[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] double bytes_of_micro_batch(std::size_t device) const {
    double sum = 0.0;
    for (const std::int32_t s : stages_on[device]) sum += cost(s).stash_bytes;
    return sum;
  }
  [[nodiscard]] double work(std::int32_t s) const {
    return cost(s).forward + cost(s).backward_input + cost(s).backward_weight;
  }
  [[nodiscard]] double seconds(ActionKind kind, std::int32_t s) const {
    return cost(s).seconds(kind);
  }
  [[nodiscard]] ActionKind backward() const {
    return split ? ActionKind::BackwardInput : ActionKind::Backward;
  }
  [[nodiscard]] double latency(const Link& l) const {
    return device(l.from) == device(l.to) ? 0.0 : link.latency;
  }

  std::vector<StageCost> costs;
  std::int32_t stages;
  std::int32_t micro_batches;
  bool split;
  std::vector<std::int32_t> device_of;
  std::vector<Link> links;
  LinkModel link;
  std::vector<double> message_bytes;
  Caps caps;  ///< maximum number of micro-batches held, by stage
  std::vector<double> byte_limit;
  std::vector<std::vector<std::int32_t>> stages_on;  ///< by device
};

/// Seconds from the beginning of an action to the end of its micro-batch on idle devices.
class Paths {
 public:
  explicit Paths(const ScheduleProblem& problem);
  [[nodiscard]] double forward(std::int32_t s) const {
    return forward_[static_cast<std::size_t>(s)];
  }
  [[nodiscard]] double backward(std::int32_t s) const {
    return backward_[static_cast<std::size_t>(s)];
  }

 private:
  std::vector<double> forward_;
  std::vector<double> backward_;
};

}  // namespace millrace::pipeline
