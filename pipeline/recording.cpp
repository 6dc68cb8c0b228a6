// SPDX-License-Identifier: Apache-2.0
#include "pipeline/recording.hpp"

#include <utility>

namespace millrace::pipeline {

Recording::Recording(std::vector<LocalEntry> entries)
    : entries_(std::move(entries)), records_(entries_.size()) {}

void Recording::begin(std::size_t first, std::size_t count) {
  const std::int64_t now = steady_nanoseconds();
  for (std::size_t entry = first; entry < first + count; ++entry) {
    records_[entry] = {};
    records_[entry].begin = now;
  }
  progress_.fetch_add(count, std::memory_order_relaxed);
  enter(first);
}

void Recording::end(std::size_t first, std::size_t count) {
  const std::int64_t now = steady_nanoseconds();
  for (std::size_t entry = first; entry < first + count; ++entry) records_[entry].end = now;
}

CurrentAction Recording::current() const {
  const std::int64_t running = running_.load();
  if (running < 0) return {};
  const LocalEntry& entry = entries_[static_cast<std::size_t>(running)];
  return {entry.replica, entry.action, awaited_.load(), awaited_member_.load()};
}

}  // namespace millrace::pipeline
