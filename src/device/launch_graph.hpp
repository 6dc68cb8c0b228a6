// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "device/queues.hpp"

namespace millrace::device {

/// Kernels and copies that are kept with all their arguments, to be queued again and again in one
/// launch. What they read from device memory may differ each time.
class LaunchGraph {
 public:
  LaunchGraph();
  ~LaunchGraph();
  LaunchGraph(LaunchGraph&&) noexcept;
  LaunchGraph& operator=(LaunchGraph&&) noexcept;

  /// Keeps what queue_work() queues on `space`; nothing of it runs. It may not wait, and may mark
  /// no events. Returns false, and keeps nothing, if the device cannot keep some of it. Only for
  /// devices with kHasGraphs.
  [[nodiscard]] bool capture(const ExecutionSpace& space, const std::function<void()>& queue_work);
  /// Queues it.
  void launch(const ExecutionSpace& space) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Whether this device keeps launches: not if marks wait for it.
inline constexpr bool kHasGraphs = kHasSideQueues;

}  // namespace millrace::device
