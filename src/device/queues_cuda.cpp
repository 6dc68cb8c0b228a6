// SPDX-License-Identifier: Apache-2.0
//
// Queues and points on NVIDIA GPUs: streams and events.
#include <cuda_runtime.h>

#include <array>
#include <utility>

#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/free_memory.hpp"
#include "device/queues.hpp"

namespace millrace::device {
namespace {

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  fail(ErrorKind::Internal, "{} failed: {}; look for an earlier error of this GPU", call,
       cudaGetErrorString(code));
}

/// A stream, which its destructor waits for.
class Stream {
 public:
  /// The smaller the number, the earlier it is served; streams of kernels have 0.
  explicit Stream(int priority) {
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
  }
  ~Stream() {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

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

Event::Event() : state_(std::make_unique<State>()) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::mark(const ExecutionSpace& space) { state_->mark(space.cuda_stream()); }

bool Event::reached() const {
  if (!state_->marked) return true;
  const cudaError_t code = cudaEventQuery(state_->event);
  if (code == cudaErrorNotReady) return false;
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

class CopyQueue::State {
 public:
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes, cudaMemcpyKind kind) const {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream.get()),
          "cudaMemcpyAsync");
  }

  Stream stream{0};
};

CopyQueue::CopyQueue() : state_(std::make_unique<State>()) {}
CopyQueue::~CopyQueue() = default;
void CopyQueue::wait_for(const Event& event) { event.state().hold(state_->stream.get()); }
void CopyQueue::to_device(std::byte* device, const std::byte* host, std::int64_t bytes) {
  state_->copy(device, host, bytes, cudaMemcpyHostToDevice);
}
void CopyQueue::to_host(std::byte* host, const std::byte* device, std::int64_t bytes) {
  state_->copy(host, device, bytes, cudaMemcpyDeviceToHost);
}
void CopyQueue::mark(Event& event) { event.state().mark(state_->stream.get()); }
void CopyQueue::wait() {
  check(cudaStreamSynchronize(state_->stream.get()), "cudaStreamSynchronize");
}

class LibraryQueue::State {
 public:
  Stream stream{highest_priority()};

 private:
  static int highest_priority() {
    int lowest = 0;
    int highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    return highest;
  }
};

LibraryQueue::LibraryQueue() : state_(std::make_unique<State>()) {}
LibraryQueue::~LibraryQueue() = default;
void LibraryQueue::wait_for(const Event& event) { event.state().hold(state_->stream.get()); }
void LibraryQueue::mark(Event& event) { event.state().mark(state_->stream.get()); }
void* LibraryQueue::handle() const { return state_->stream.get(); }

std::string device_place() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::array<char, 32> place = {};
  check(cudaDeviceGetPCIBusId(place.data(), static_cast<int>(place.size()), device),
        "cudaDeviceGetPCIBusId");
  return place.data();
}

}  // namespace millrace::device
