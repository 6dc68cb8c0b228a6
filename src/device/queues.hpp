// SPDX-License-Identifier: Apache-2.0
//
// Queues of a device and points in them. Kernels wait in the queue of their execution space; copies
// that run beside them have queues of their own. A point orders the two: later work of one queue
// waits until the other has reached it, and the host can ask whether it is reached, without a
// fence. On cores there are no queues: everything is done when a function returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/parallel.hpp"

namespace millrace::device {

/// Whether work waits in queues. Otherwise every point is reached as soon as it is marked.
inline constexpr bool kHasQueues = !kOnCores;

/// Whether there are queues beside that of kernels. Kokkos knows none: on a device that it alone
/// describes, the host waits for the kernels at every mark, and for every copy.
#if (defined(KOKKOS_ENABLE_CUDA) || defined(MILLRACE_FAKE_DEVICE)) && \
    !defined(MILLRACE_NO_SIDE_QUEUES)
inline constexpr bool kHasSideQueues = true;
#else
inline constexpr bool kHasSideQueues = false;
#endif

/// A point in a queue. It can be marked again and again; what waits for it waits for the last mark.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  /// The point behind everything that is queued on `space` so far.
  void mark(const ExecutionSpace& space);
  /// Whether the queue has passed the point; also true before the first mark.
  [[nodiscard]] bool reached() const;
  void wait() const;
  /// Nanoseconds from this point to `later`, by the clock of the device. Both must be reached.
  [[nodiscard]] std::int64_t nanoseconds_until(const Event& later) const;

  class State;
  [[nodiscard]] State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Kernels that are queued on `space` from now on wait for the event.
void wait_for(const ExecutionSpace& space, const Event& event);

/// Waits for kernels on cores, where no queue keeps their order.
inline void settle(const ExecutionSpace& space) {
  if constexpr (!kHasQueues) fence(space);
}

/// Copies in the queue of kernels: within device memory, or from and to a host_buffer(). The two
/// ranges must not overlap.
enum class Direction { Within, ToDevice, ToHost };
void queue_copy(const ExecutionSpace& space, Direction direction, std::byte* to,
                const std::byte* from, std::int64_t bytes);
/// Sets device memory to zero bytes, in the queue of kernels; `bytes` is a multiple of 8.
void queue_clear(const ExecutionSpace& space, std::byte* device, std::int64_t bytes);

/// Copies between device and host that run beside kernels, one after the other. Until a copy is
/// done, nobody may change its source or touch its target. The host's memory should be a
/// host_buffer(): other memory is copied more slowly, and not beside kernels.
class CopyQueue {
 public:
  CopyQueue();
  /// Waits.
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// Copies that are queued from now on wait for the event.
  void wait_for(const Event& event);
  void to_device(std::byte* device, const std::byte* host, std::int64_t bytes);
  void to_host(std::byte* host, const std::byte* device, std::int64_t bytes);
  /// Marks the point behind everything that is queued here so far.
  void mark(Event& event);
  /// Waits for everything that is queued here.
  void wait();

  class State;

 private:
  std::unique_ptr<State> state_;
};

/// A queue beside kernels that a library fills, with messages between devices. It is served before
/// kernels where both could run.
class LibraryQueue {
 public:
  LibraryQueue();
  /// Waits.
  ~LibraryQueue();
  LibraryQueue(const LibraryQueue&) = delete;
  LibraryQueue& operator=(const LibraryQueue&) = delete;

  /// What is put in from now on waits for the event.
  void wait_for(const Event& event);
  /// Marks the point behind everything that is in the queue so far.
  void mark(Event& event);
  /// What the library of the device knows it by: on NVIDIA's GPUs a stream; null without
  /// kHasSideQueues.
  [[nodiscard]] void* handle() const;

  class State;

 private:
  std::unique_ptr<State> state_;
};

/// Which device of its machine this process uses: the place of a GPU on the bus. "" without
/// kHasSideQueues.
[[nodiscard]] std::string device_place();

}  // namespace millrace::device
