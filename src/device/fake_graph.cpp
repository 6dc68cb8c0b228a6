// SPDX-License-Identifier: Apache-2.0
//
// Kept launches on the fake device: whoever leaves a value that changes in a functor gets other
// bits.
#include <utility>

#include "device/fake_queue.hpp"
#include "device/launch_graph.hpp"

namespace millrace::device {

class LaunchGraph::State {
 public:
  fake::Queue::Kept kept;
};

LaunchGraph::LaunchGraph() = default;
LaunchGraph::~LaunchGraph() = default;
LaunchGraph::LaunchGraph(LaunchGraph&&) noexcept = default;
LaunchGraph& LaunchGraph::operator=(LaunchGraph&&) noexcept = default;

bool LaunchGraph::capture(const ExecutionSpace&, const std::function<void()>& queue_work) {
  fake::Queue& queue = fake::Queue::of_kernels();
  queue.begin_keeping();
  queue_work();
  state_ = std::make_unique<State>(State{queue.keep()});
  return true;
}

void LaunchGraph::launch(const ExecutionSpace&) const {
  fake::Queue::of_kernels().push(state_->kept);
}

}  // namespace millrace::device
