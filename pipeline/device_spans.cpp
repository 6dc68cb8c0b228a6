// SPDX-License-Identifier: Apache-2.0
#include "pipeline/device_spans.hpp"

#include "core/error.hpp"

namespace millrace::pipeline {

DeviceSpans::DeviceSpans(std::size_t most) {
  if constexpr (!device::kHasQueues) return;
  spans_.resize(most);
  times_.reserve(most);
}

void DeviceSpans::begin(const device::ExecutionSpace& space, std::size_t entry, Doing doing) {
  if constexpr (!device::kHasQueues) return;
  MILLRACE_ASSERT(count_ < spans_.size());
  Span& span = spans_[count_];
  span.entry = static_cast<std::uint32_t>(entry);
  span.doing = doing;
  span.begin.mark(space);
}

void DeviceSpans::end(const device::ExecutionSpace& space) {
  if constexpr (!device::kHasQueues) return;
  spans_[count_++].end.mark(space);
}

std::span<const Piece> DeviceSpans::times(const device::ExecutionSpace& space,
                                          Recording::Clock now) {
  times_.clear();
  if (count_ == 0) return times_;
  last_.mark(space);
  last_.wait();
  const std::int64_t end = now();
  for (std::size_t i = 0; i < count_; ++i) {
    const Span& span = spans_[i];
    times_.push_back({.begin = end - span.begin.nanoseconds_until(last_),
                      .end = end - span.end.nanoseconds_until(last_),
                      .entry = span.entry,
                      .doing = span.doing});
  }
  return times_;
}

}  // namespace millrace::pipeline
