// SPDX-License-Identifier: Apache-2.0
//
// Queues of devices without an implementation of their own (queues_cuda.cpp, fake_queues.cpp):
// cores, which have none, and accelerators that Kokkos alone describes. There a mark waits for the
// kernels, and a copy for the kernels before it and for its own end, so that every point is
// reached. This keeps to the contract but runs nothing beside kernels.
#include "device/queues.hpp"

#include "core/clock.hpp"
#include "core/error.hpp"
#include "device/arena.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"

namespace millrace::device {

std::optional<std::int64_t> free_memory() { return std::nullopt; }
std::optional<std::int64_t> total_memory() { return std::nullopt; }

class Event::State {
 public:
  std::int64_t marked = 0;  ///< by the host's clock
};

Event::Event() : state_(std::make_shared<State>()) {}

void Event::mark(const ExecutionSpace& space) {
  if constexpr (kHasQueues) fence(space);
  state_->marked = steady_nanoseconds();
}
// NOLINTNEXTLINE(readability-convert-member-functions-to-static): other devices have queues
bool Event::reached() const { return true; }
void Event::wait() const {}
std::int64_t Event::nanoseconds_until(const Event& later) const {
  return later.state_->marked - state_->marked;
}

void wait_for(const ExecutionSpace&, const Event&) {}

void queue_copy(const ExecutionSpace& space, Direction direction, std::byte* to,
                const std::byte* from, std::int64_t bytes) {
  if constexpr (kHasQueues) fence(space);
  switch (direction) {
    case Direction::Within:
      return copy_within(to, from, bytes);
    case Direction::ToDevice:
      return copy_to_device(to, from, bytes);
    case Direction::ToHost:
      return copy_to_host(to, from, bytes);
  }
}

SideQueue::SideQueue(Served) {}
void SideQueue::wait_for(const Event&) {}
void SideQueue::to_device(std::byte* device, const std::byte* host, std::int64_t bytes) {
  copy_to_device(device, host, bytes);
}
void SideQueue::to_host(std::byte* host, const std::byte* device, std::int64_t bytes) {
  copy_to_host(host, device, bytes);
}
void SideQueue::mark(Event& event) { event.state().marked = steady_nanoseconds(); }
void SideQueue::wait() {}
// NOLINTNEXTLINE(readability-convert-member-functions-to-static): other devices have queues
void* SideQueue::handle() const { return nullptr; }

// Nobody captures anything.
bool LaunchGraph::capture(const ExecutionSpace&, const std::function<void()>&) { return false; }
void LaunchGraph::launch(const ExecutionSpace&) const {
  fail(ErrorKind::Internal, "this device keeps no launches");
}

std::string device_place() { return ""; }

}  // namespace millrace::device
