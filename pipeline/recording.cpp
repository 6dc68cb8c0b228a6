// SPDX-License-Identifier: Apache-2.0
#include "pipeline/recording.hpp"

#include <array>
#include <utility>

#include "core/error.hpp"

namespace millrace::pipeline {

std::string_view name_of(Doing doing) {
  constexpr std::array<std::string_view, 7> kNames = {"work",
                                                      "pack weights",
                                                      "add gradients",
                                                      "wait for a message",
                                                      "wait until sent",
                                                      "wait for images",
                                                      "wait for all ranks"};
  return kNames.at(static_cast<std::size_t>(doing));
}

Recording::Recording(std::vector<LocalEntry> entries, std::size_t most_pieces)
    : entries_(std::move(entries)), records_(entries_.size()) {
  pieces_.reserve(most_pieces);
}

void Recording::start(std::size_t entry, Doing doing, std::int64_t now) {
  close(now);
  MILLRACE_ASSERT(pieces_.size() < pieces_.capacity());  // a step takes no memory
  pieces_.push_back({now, now, static_cast<std::uint32_t>(entry), doing});
  open_ = true;
}

void Recording::close(std::int64_t now) {
  if (open_) pieces_.back().end = now;
  open_ = false;
}

void Recording::begin(std::size_t first, std::size_t count) {
  const std::int64_t now = now_();
  for (std::size_t entry = first; entry < first + count; ++entry) {
    records_[entry] = {};
    records_[entry].begin = now;
  }
  progress_.fetch_add(count, std::memory_order_relaxed);
  set(running_, static_cast<std::int64_t>(first));
  start(first, Doing::Work, now);
}

void Recording::end(std::size_t first, std::size_t count) {
  const std::int64_t now = now_();
  for (std::size_t entry = first; entry < first + count; ++entry) records_[entry].end = now;
  close(now);
}

void Recording::enter(std::size_t entry) {
  set(running_, static_cast<std::int64_t>(entry));
  if (open_ && pieces_.back().entry == entry && doing() == Doing::Work) return;
  start(entry, Doing::Work, now_());
}

void Recording::change(Doing doing) {
  if (pieces_.back().doing == doing) return;
  start(pieces_.back().entry, doing, now_());
}

void Recording::finish() {
  close(now_());
  running_ = -1;
}

CurrentAction Recording::current() const {
  const std::int64_t running = running_.load();
  if (running < 0) return {};
  const LocalEntry& entry = entries_[static_cast<std::size_t>(running)];
  return {entry.replica, entry.action, awaited_.load(), awaited_member_.load()};
}

}  // namespace millrace::pipeline
