// SPDX-License-Identifier: Apache-2.0
//
// Devices that keep no launches: nobody captures anything.
#include "device/launch_graph.hpp"

#include "core/error.hpp"

namespace millrace::device {

class LaunchGraph::State {};

LaunchGraph::LaunchGraph() = default;
LaunchGraph::~LaunchGraph() = default;
LaunchGraph::LaunchGraph(LaunchGraph&&) noexcept = default;
LaunchGraph& LaunchGraph::operator=(LaunchGraph&&) noexcept = default;

bool LaunchGraph::capture(const ExecutionSpace&, const std::function<void()>&) { return false; }
void LaunchGraph::launch(const ExecutionSpace&) const {
  fail(ErrorKind::Internal, "this device keeps no launches");
}

}  // namespace millrace::device
