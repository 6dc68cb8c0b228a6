// SPDX-License-Identifier: Apache-2.0
//
// Queues of the fake device: copies and messages come too early or too late for code that does not
// keep to the rules.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "device/fake_queue.hpp"
#include "device/free_memory.hpp"
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

Event::Event() : state_(std::make_unique<State>()) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

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

namespace {

/// For destructors: what fails ends the process.
void finish(fake::Queue& queue) noexcept {
  try {
    queue.run();
  } catch (...) {
    std::terminate();
  }
}

}  // namespace

/// Every other copy is made at once, although kernels may still wait in their queue, and the rest
/// as late as possible.
class CopyQueue::State {
 public:
  fake::Queue queue;

  void push(const fake::Copy& copy) {
    queue.push(copy);
    early_ = !early_;
    if (early_) queue.run();
  }

 private:
  bool early_ = false;
};

CopyQueue::CopyQueue() : state_(std::make_unique<State>()) {}
CopyQueue::~CopyQueue() { finish(state_->queue); }
void CopyQueue::wait_for(const Event& event) { state_->queue.wait_for(event.state().point); }
void CopyQueue::to_device(std::byte* device, const std::byte* host, std::int64_t bytes) {
  state_->push({device, host, bytes});
}
void CopyQueue::to_host(std::byte* host, const std::byte* device, std::int64_t bytes) {
  state_->push({host, device, bytes});
}
void CopyQueue::mark(Event& event) { event.state().mark(state_->queue); }
void CopyQueue::wait() { state_->queue.run(); }

class LibraryQueue::State {
 public:
  fake::Queue queue;
};

LibraryQueue::LibraryQueue() : state_(std::make_unique<State>()) {}
LibraryQueue::~LibraryQueue() { finish(state_->queue); }
void LibraryQueue::wait_for(const Event& event) { state_->queue.wait_for(event.state().point); }
void LibraryQueue::mark(Event& event) { event.state().mark(state_->queue); }
void* LibraryQueue::handle() const { return &state_->queue; }

/// Every process has its own, unless they are told to share one.
std::string device_place() {
  return shared_device() ? "stand-in" : fmt::format("process {}", ::getpid());
}

}  // namespace millrace::device
