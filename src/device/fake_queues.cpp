// SPDX-License-Identifier: Apache-2.0
//
// Queues of the fake device: copies and messages come too early or too late for code that does not
// keep to the rules, and kept launches have the values that were there when they were kept.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "device/environment.hpp"
#include "device/fake_queue.hpp"
#include "device/queues.hpp"

namespace millrace::device {

namespace {

/// The bytes of a device that all processes of this machine share, for tests.
std::optional<std::int64_t> shared_device() {
  const char* const text = std::getenv("MILLRACE_STAND_IN_GPU");
  if (text == nullptr) return std::nullopt;
  const auto bytes = parse_number<std::int64_t>(text);
  if (!bytes || *bytes < 1)
    fail(ErrorKind::Usage, "MILLRACE_STAND_IN_GPU={}: use a number of bytes, or unset it", text);
  return bytes;
}

}  // namespace

std::optional<std::int64_t> free_memory() { return shared_device(); }
std::optional<std::int64_t> total_memory() { return shared_device(); }

class Event::State {
 public:
  std::shared_ptr<fake::Point> point = std::make_shared<fake::Point>();
  bool asked = false;  ///< whether somebody has asked since the last mark

  void mark(fake::Queue& queue) {
    point = queue.mark();
    asked = false;
  }
};

Event::Event() : state_(std::make_shared<State>()) {}

void Event::mark(const ExecutionSpace&) { state_->mark(fake::Queue::of_kernels()); }

bool Event::reached() const {
  fake::Queue* const queue = state_->point->queue;
  if (queue == nullptr) return true;
  return std::exchange(state_->asked, true) && queue->try_until(state_->point.get());
}

void Event::wait() const {
  if (state_->point->queue != nullptr) state_->point->queue->run_until(state_->point.get());
}

std::int64_t Event::nanoseconds_until(const Event& later) const {
  return later.state_->point->time - state_->point->time;
}

void wait_for(const ExecutionSpace&, const Event& event) {
  fake::Queue::of_kernels().wait_for(event.state().point);
}

void queue_copy(const ExecutionSpace&, Direction, std::byte* to, const std::byte* from,
                std::int64_t bytes) {
  fake::Queue::of_kernels().push(fake::Copy{to, from, bytes});
}

/// Every other copy is made at once, although kernels may still wait in their queue, and the rest
/// as late as possible.
class SideQueue::State {
 public:
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    try {
      queue.run();
    } catch (...) {
      std::terminate();
    }
  }

  void push(const fake::Copy& copy) {
    queue.push(copy);
    early_ = !early_;
    if (early_) queue.run();
  }

  fake::Queue queue;

 private:
  bool early_ = false;
};

SideQueue::SideQueue(Served) : state_(std::make_shared<State>()) {}
void SideQueue::wait_for(const Event& event) { state_->queue.wait_for(event.state().point); }
void SideQueue::to_device(std::byte* device, const std::byte* host, std::int64_t bytes) {
  state_->push({device, host, bytes});
}
void SideQueue::to_host(std::byte* host, const std::byte* device, std::int64_t bytes) {
  state_->push({host, device, bytes});
}
void SideQueue::mark(Event& event) { event.state().mark(state_->queue); }
void SideQueue::wait() { state_->queue.run(); }
void* SideQueue::handle() const { return &state_->queue; }

/// Whoever leaves a value that changes in a functor gets other bits.
class LaunchGraph::State {
 public:
  fake::Queue::Kept kept;
};

bool LaunchGraph::capture(const ExecutionSpace&, const std::function<void()>& queue_work) {
  fake::Queue& queue = fake::Queue::of_kernels();
  queue.begin_keeping();
  queue_work();
  state_ = std::make_shared<State>(State{queue.keep()});
  return true;
}

void LaunchGraph::launch(const ExecutionSpace&) const {
  fake::Queue::of_kernels().push(state_->kept);
}

/// Every process has its own, unless they are told to share one.
std::string device_place() {
  return shared_device() ? "stand-in" : fmt::format("process {}", ::getpid());
}

}  // namespace millrace::device
