// SPDX-License-Identifier: Apache-2.0
//
// Queues of a device and points in them. Kernels wait in the queue of their execution space; copies
// that run beside them have queues of their own. A point orders the two: later work of one queue
// waits until the other has reached it, and the host can ask whether it is reached, without a
// fence. On cores there are no queues: everything is done when a function returns. A device may
// keep what is queued, to be queued again in one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  Event(Event&&) noexcept = default;
  Event& operator=(Event&&) noexcept = default;

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
  std::shared_ptr<State> state_;  // of one owner; only the sources of a device know its type
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

/// A queue beside that of kernels, for one thing after the other: copies between device and host,
/// or what a library puts in. Until a copy is done, nobody may change its source or touch its
/// target. The host's memory should be a host_buffer(): other memory is copied more slowly, and not
/// beside kernels. The destructor waits.
class SideQueue {
 public:
  /// Whether the queue comes before others where both could run.
  enum class Served { InTurn, First };
  explicit SideQueue(Served served = Served::InTurn);
  SideQueue(const SideQueue&) = delete;
  SideQueue& operator=(const SideQueue&) = delete;

  /// What is put in from now on waits for the event.
  void wait_for(const Event& event);
  void to_device(std::byte* device, const std::byte* host, std::int64_t bytes);
  void to_host(std::byte* host, const std::byte* device, std::int64_t bytes);
  /// Marks the point behind everything that is in the queue so far.
  void mark(Event& event);
  /// Waits for everything in the queue.
  void wait();
  /// What the library of the device knows it by: on NVIDIA's GPUs a stream; null without
  /// kHasSideQueues.
  [[nodiscard]] void* handle() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Which device of its machine this process uses: the place of a GPU on the bus. "" without
/// kHasSideQueues.
[[nodiscard]] std::string device_place();

/// Kernels and copies that are kept with all their arguments, to be queued again and again in one
/// launch. What they read from device memory may differ each time.
class LaunchGraph {
 public:
  /// Keeps what queue_work() queues on `space`; nothing of it runs. It may not wait, and may mark
  /// no events. Returns false, and keeps nothing, if the device cannot keep some of it. Only for
  /// devices with kHasGraphs.
  [[nodiscard]] bool capture(const ExecutionSpace& space, const std::function<void()>& queue_work);
  /// Queues it.
  void launch(const ExecutionSpace& space) const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// Whether this device keeps launches: not if marks wait for it.
inline constexpr bool kHasGraphs = kHasSideQueues;

/// The launches of work that is queued again and again. Only for devices with kHasGraphs.
class KeptLaunch {
 public:
  enum class State { New, Ran, Kept, CannotBeKept };
  /// Queues the work. The first time queue_work() does that, while libraries load what they need;
  /// the second time its launches are kept, and they are all that is launched from then on.
  template <class QueueWork>
  void run(const ExecutionSpace& space, const QueueWork& queue_work) {
    if (state_ == State::Ran)
      state_ = graph_.capture(space, std::cref(queue_work)) ? State::Kept : State::CannotBeKept;
    if (state_ == State::Kept) return graph_.launch(space);
    queue_work();
    if (state_ == State::New) state_ = State::Ran;
  }
  [[nodiscard]] State state() const { return state_; }

 private:
  State state_ = State::New;
  LaunchGraph graph_;
};

}  // namespace millrace::device
