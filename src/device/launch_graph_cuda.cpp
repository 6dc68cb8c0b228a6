// SPDX-License-Identifier: Apache-2.0
//
// Kept launches on NVIDIA GPUs: CUDA graphs.
#include <cuda_runtime.h>

#include <exception>
#include <utility>

#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/launch_graph.hpp"

namespace millrace::device {

class LaunchGraph::State {
 public:
  explicit State(cudaGraphExec_t executable) : executable_(executable) {}
  ~State() { (void)cudaGraphExecDestroy(executable_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraphExec_t executable_;
};

LaunchGraph::LaunchGraph() = default;
LaunchGraph::~LaunchGraph() = default;
LaunchGraph::LaunchGraph(LaunchGraph&&) noexcept = default;
LaunchGraph& LaunchGraph::operator=(LaunchGraph&&) noexcept = default;

bool LaunchGraph::capture(const ExecutionSpace& space, const std::function<void()>& queue_work) {
  cudaStream_t stream = space.cuda_stream();
  // Other threads may allocate and copy meanwhile.
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
  bool queued = true;
  try {
    queue_work();
  } catch (const std::exception&) {
    queued = false;  // a call that cannot be kept has ended the capture
  }
  cudaGraph_t graph = nullptr;
  const bool ended = cudaStreamEndCapture(stream, &graph) == cudaSuccess;
  cudaGraphExec_t executable = nullptr;
  const bool made = queued && ended && cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess;
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  if (made)
    state_ = std::make_unique<State>(executable);
  else
    (void)cudaGetLastError();  // the failed capture is no error of what follows
  return made;
}

void LaunchGraph::launch(const ExecutionSpace& space) const {
  const cudaError_t code = cudaGraphLaunch(state_->executable(), space.cuda_stream());
  if (code != cudaSuccess)
    fail(ErrorKind::Internal, "cudaGraphLaunch failed: {}", cudaGetErrorString(code));
}

}  // namespace millrace::device
