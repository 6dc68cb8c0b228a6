// SPDX-License-Identifier: Apache-2.0
//
// Queues, points and kept launches on NVIDIA GPUs: streams, events and graphs.
#include <cuda_runtime.h>

#include <array>
#include <exception>
#include <utility>

#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "device/queues.hpp"

namespace millrace::device {
namespace {

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  fail(ErrorKind::Internal, "{} failed: {}; look for an earlier error of this GPU", call,
       cudaGetErrorString(code));
}

/// What a call answered is no error of the calls that follow.
void forget_last_error() { (void)cudaGetLastError(); }

int highest_priority() {
  int lowest = 0;
  int highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
  return highest;
}

}  // namespace

std::optional<std::int64_t> free_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

std::optional<std::int64_t> total_memory() {
  int device = 0;
  cudaDeviceProp properties = {};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess)
    return std::nullopt;
  return static_cast<std::int64_t>(properties.totalGlobalMem);
}

class Event::State {
 public:
  State() { check(cudaEventCreate(&event), "cudaEventCreate"); }
  ~State() { (void)cudaEventDestroy(event); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void mark(cudaStream_t stream) {
    check(cudaEventRecord(event, stream), "cudaEventRecord");
    marked = true;
  }

  void hold(cudaStream_t stream) const {
    if (marked) check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
  }

  cudaEvent_t event = nullptr;
  bool marked = false;
};

Event::Event() : state_(std::make_shared<State>()) {}

void Event::mark(const ExecutionSpace& space) { state_->mark(space.cuda_stream()); }

bool Event::reached() const {
  if (!state_->marked) return true;
  const cudaError_t code = cudaEventQuery(state_->event);
  if (code == cudaErrorNotReady) {
    forget_last_error();
    return false;
  }
  check(code, "cudaEventQuery");
  return true;
}

void Event::wait() const {
  if (state_->marked) check(cudaEventSynchronize(state_->event), "cudaEventSynchronize");
}

std::int64_t Event::nanoseconds_until(const Event& later) const {
  float milliseconds = 0.0f;
  check(cudaEventElapsedTime(&milliseconds, state_->event, later.state_->event),
        "cudaEventElapsedTime");
  return static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds));
}

void wait_for(const ExecutionSpace& space, const Event& event) {
  event.state().hold(space.cuda_stream());
}

void queue_copy(const ExecutionSpace& space, Direction direction, std::byte* to,
                const std::byte* from, std::int64_t bytes) {
  const cudaMemcpyKind kind = direction == Direction::Within     ? cudaMemcpyDeviceToDevice
                              : direction == Direction::ToDevice ? cudaMemcpyHostToDevice
                                                                 : cudaMemcpyDeviceToHost;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, space.cuda_stream()),
        "cudaMemcpyAsync");
}

/// A stream, which its destructor waits for.
class SideQueue::State {
 public:
  /// The smaller the number, the earlier it is served; streams of kernels have 0.
  explicit State(int priority) {
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
  }
  ~State() {
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void copy(std::byte* to, const std::byte* from, std::int64_t bytes, cudaMemcpyKind kind) const {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream),
          "cudaMemcpyAsync");
  }

  cudaStream_t stream = nullptr;
};

SideQueue::SideQueue(Served served)
    : state_(std::make_shared<State>(served == Served::First ? highest_priority() : 0)) {}
void SideQueue::wait_for(const Event& event) { event.state().hold(state_->stream); }
void SideQueue::to_device(std::byte* device, const std::byte* host, std::int64_t bytes) {
  state_->copy(device, host, bytes, cudaMemcpyHostToDevice);
}
void SideQueue::to_host(std::byte* host, const std::byte* device, std::int64_t bytes) {
  state_->copy(host, device, bytes, cudaMemcpyDeviceToHost);
}
void SideQueue::mark(Event& event) { event.state().mark(state_->stream); }
void SideQueue::wait() { check(cudaStreamSynchronize(state_->stream), "cudaStreamSynchronize"); }
void* SideQueue::handle() const { return state_->stream; }

/// A graph of CUDA.
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

bool LaunchGraph::capture(const ExecutionSpace& space, const std::function<void()>& queue_work) {
  cudaStream_t stream = space.cuda_stream();
  // Other threads may allocate and copy meanwhile.
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    forget_last_error();
    return false;
  }
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
    state_ = std::make_shared<State>(executable);
  else
    forget_last_error();
  return made;
}

void LaunchGraph::launch(const ExecutionSpace& space) const {
  const cudaError_t code = cudaGraphLaunch(state_->executable(), space.cuda_stream());
  if (code != cudaSuccess)
    fail(ErrorKind::Internal, "cudaGraphLaunch failed: {}", cudaGetErrorString(code));
}

std::string device_place() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::array<char, 32> place = {};
  check(cudaDeviceGetPCIBusId(place.data(), static_cast<int>(place.size()), device),
        "cudaDeviceGetPCIBusId");
  return place.data();
}

}  // namespace millrace::device
