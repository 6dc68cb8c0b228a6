// SPDX-License-Identifier: Apache-2.0
#include "device/fake_queue.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "device/compat.hpp"
#include "device/vendor_scope.hpp"

namespace millrace::device {
namespace fake {
namespace {

constexpr std::size_t kWord = sizeof(std::max_align_t);

constexpr std::size_t words_of(const Work& work) { return (work.functor.size + kWord - 1) / kWord; }

}  // namespace

Queue& Queue::of_kernels() {
  static Queue queue;
  return queue;
}

void Queue::add(Item item) {
  MILLRACE_ASSERT(!running_);
  const VendorScope accelerators_allocate_themselves;
  items_.push_back(std::move(item));
}

void Queue::make_room(std::size_t items, std::size_t words) {
  if (kept_from_ || running_) return;
  const auto fits = [&] {
    return items_.size() + items <= kItems && functors_.size() + words <= kWords;
  };
  {
    const VendorScope accelerators_allocate_themselves;
    items_.reserve(kItems);
    functors_.reserve(kWords);
  }
  if (fits()) return;
  forget_past();
  if (fits()) return;
  (void)try_until(nullptr);
  forget_past();
}

void Queue::forget_past() {
  items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(next_));
  next_ = 0;
  std::size_t past = functors_.size();
  for (const Item& item : items_)
    if (const auto* const kernel = std::get_if<Kernel>(&item))
      past = std::min(past, kernel->functor);  // that of the first kernel
  functors_.erase(functors_.begin(), functors_.begin() + static_cast<std::ptrdiff_t>(past));
  for (Item& item : items_)
    if (auto* const kernel = std::get_if<Kernel>(&item)) kernel->functor -= past;
}

void Queue::push(const Work& work) {
  make_room(1, words_of(work));
  const VendorScope accelerators_allocate_themselves;
  const std::size_t at = functors_.size();
  functors_.resize(at + words_of(work));
  std::memcpy(&functors_[at], work.functor.data, work.functor.size);
  add(Kernel{work, at});
}

std::shared_ptr<Point> Queue::mark() {
  const VendorScope accelerators_allocate_themselves;
  auto point = std::make_shared<Point>(Point{.queue = this});
  add(Mark{point});
  return point;
}

void Queue::begin_keeping() { kept_from_ = items_.size(); }

Queue::Kept Queue::keep() {
  const VendorScope accelerators_allocate_themselves;
  const std::size_t begin = kept_from_.value();
  kept_from_.reset();
  MILLRACE_ASSERT(next_ <= begin && begin <= items_.size());  // nobody has waited meanwhile
  Kept kept;
  kept.items_.assign(items_.begin() + static_cast<std::ptrdiff_t>(begin), items_.end());
  items_.resize(begin);
  std::size_t first = functors_.size();
  for (Item& item : kept.items_) {
    MILLRACE_ASSERT(std::holds_alternative<Kernel>(item) || std::holds_alternative<Copy>(item));
    auto* const kernel = std::get_if<Kernel>(&item);
    if (kernel == nullptr) continue;
    first = std::min(first, kernel->functor);  // that of the first kernel
    kernel->functor -= first;
  }
  kept.functors_.assign(functors_.begin() + static_cast<std::ptrdiff_t>(first), functors_.end());
  functors_.resize(first);
  return kept;
}

void Queue::push(const Kept& kept) {
  make_room(kept.items_.size(), kept.functors_.size());
  const VendorScope accelerators_allocate_themselves;
  const std::size_t first = functors_.size();
  functors_.insert(functors_.end(), kept.functors_.begin(), kept.functors_.end());
  for (Item item : kept.items_) {
    if (auto* const kernel = std::get_if<Kernel>(&item)) kernel->functor += first;
    add(std::move(item));
  }
}

void Queue::run_until(const Point* point) {
  while (!try_until(point)) std::this_thread::yield();
}

bool Queue::try_until(const Point* point) {
  const auto is_there = [&] {
    return point != nullptr ? point->queue == nullptr : next_ == items_.size();
  };
  if (running_) return is_there();  // a queue that this one waits for, waits for this one
  running_ = true;
  bool goes_on = true;
  while (goes_on && next_ < items_.size() && !is_there()) {
    goes_on = std::visit([this](const auto& item) { return this->execute(item); }, items_[next_]);
    if (goes_on) ++next_;
  }
  running_ = false;
  const bool there = is_there();
  if (next_ < items_.size()) return there;
  items_.clear();
  functors_.clear();
  next_ = 0;
  return there;
}

void Queue::settle_waits() {
  for (std::size_t i = items_.size(); i > next_; --i) {
    const Wait* const wait = std::get_if<Wait>(&items_[i - 1]);
    if (wait == nullptr) return;
    while (!execute(*wait)) std::this_thread::yield();
  }
}

bool Queue::execute(const Kernel& kernel) const {
  const Access access;
  const ExecutionSpace space;
  const void* const functor = &functors_[kernel.functor];
  if (kernel.work.n == kLibraryCall)
    kernel.work.run(functor, 0, 1);
  else
    run_on_cores(kernel.work.label, space, kernel.work.n, kernel.work.run, functor);
  space.fence();
  return true;
}

bool Queue::execute(const Copy& copy) {
  const Access access;
  std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
  return true;
}

bool Queue::execute(const Mark& mark) {
  *mark.point = {.time = steady_nanoseconds()};
  return true;
}

bool Queue::execute(const Wait& wait) {
  Queue* const queue = wait.point->queue;
  return queue == nullptr || queue->try_until(wait.point.get());
}

bool Queue::execute(const Message& message) { return message.work->finish(); }

}  // namespace fake

void queue_call(RangeFunction call, FunctorBytes functor) {
  fake::Queue::of_kernels().push(
      fake::Work{.label = "library", .n = fake::kLibraryCall, .run = call, .functor = functor});
}

}  // namespace millrace::device
