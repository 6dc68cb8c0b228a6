// SPDX-License-Identifier: Apache-2.0
#include "pipeline/recording.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "device/queues.hpp"

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
  if constexpr (device::kHasQueues) host_pieces_.reserve(most_pieces);
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

namespace {

/// Walks through the pieces of a host, to find what belongs between the spans of its device.
class HostPieces {
 public:
  HostPieces(std::span<const Piece> pieces, std::span<const LocalEntry> entries)
      : pieces_(pieces), entries_(entries) {}

  /// Calls push(piece) for what lies between the times `begin` and `end`, in order: waits, cut to
  /// fit, and points for the messages of entries before number `entry`. What the host queued for
  /// the device is left out.
  template <class Push>
  void between(std::int64_t begin, std::int64_t end, std::size_t entry, const Push& push) {
    bool waits = true;
    for (;;) {
      while (wait_ < pieces_.size() && is_work(pieces_[wait_].doing)) ++wait_;
      while (message_ < pieces_.size() && !is_message(pieces_[message_])) ++message_;
      waits = waits && wait_ < pieces_.size() && pieces_[wait_].begin < end;
      const bool messages = message_ < pieces_.size() && pieces_[message_].entry < entry;
      if (messages && (!waits || message_ < wait_)) {
        Piece point = pieces_[message_++];
        point.begin = point.end = std::clamp(point.begin, begin, end);
        push(point);
      } else if (waits) {
        Piece piece = pieces_[wait_];
        waits = piece.end <= end;  // the rest of a piece may lie behind the span
        if (waits) ++wait_;
        piece.begin = std::max(piece.begin, begin);
        piece.end = std::min(piece.end, end);
        if (piece.begin < piece.end) push(piece);
      } else {
        return;
      }
    }
  }

 private:
  [[nodiscard]] bool is_message(const Piece& piece) const {
    const ActionKind kind = entries_[piece.entry].action.kind;
    return is_work(piece.doing) && (is_send(kind) || is_receive(kind));
  }

  std::span<const Piece> pieces_;
  std::span<const LocalEntry> entries_;
  std::size_t wait_ = 0;     ///< the next of pieces_ that may be a wait
  std::size_t message_ = 0;  ///< the next that may be a message
};

}  // namespace

void Recording::take_times_of_device(std::span<const Piece> spans) {
  if (spans.empty()) return;
  host_pieces_.reserve(pieces_.capacity());
  host_pieces_.swap(pieces_);
  pieces_.clear();
  const auto push = [this](const Piece& piece) {
    MILLRACE_ASSERT(pieces_.size() < pieces_.capacity());
    pieces_.push_back(piece);
  };
  HostPieces host(host_pieces_, entries_);
  constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();
  std::int64_t free_from = std::numeric_limits<std::int64_t>::min();
  for (const Piece& span : spans) {
    // Weights are packed before the first entry, for whichever it is.
    host.between(free_from, span.begin, span.doing == Doing::Work ? span.entry : 0, push);
    push(span);
    free_from = span.end;
  }
  host.between(free_from, kAlways, entries_.size(), push);
  take_times_of_records(spans);
}

void Recording::take_times_of_records(std::span<const Piece> spans) {
  const auto computes = [this](std::size_t entry) {
    return is_compute(entries_[entry].action.kind);
  };
  for (const Piece& span : spans)
    if (span.doing == Doing::Work && computes(span.entry)) records_[span.entry].end = span.end;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span)  // the first comes last
    if (span->doing == Doing::Work && computes(span->entry))
      records_[span->entry].begin = span->begin;
  // What the host does for an entry has its place behind the kernels that were queued before.
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (std::size_t entry = 0; entry < records_.size(); ++entry) {
    ActionRecord& record = records_[entry];
    if (!computes(entry)) {
      record.begin = std::max(record.begin, last);
      record.end = std::max(record.end, record.begin);
    }
    last = std::max(last, record.end);
  }
}

CurrentAction Recording::current() const {
  const std::int64_t running = running_.load();
  if (running < 0) return {};
  const LocalEntry& entry = entries_[static_cast<std::size_t>(running)];
  return {entry.replica, entry.action, awaited_.load(), awaited_member_.load()};
}

DeviceSpans::DeviceSpans(std::size_t most) {
  if constexpr (!device::kHasQueues) return;
  spans_.resize(most);
  times_.reserve(most);
}

void DeviceSpans::begin(const device::ExecutionSpace& space, std::size_t entry, Doing doing) {
  if (!device::kHasQueues || !asked_) return;
  MILLRACE_ASSERT(count_ < spans_.size());
  Span& span = spans_[count_];
  span.entry = static_cast<std::uint32_t>(entry);
  span.doing = doing;
  span.begin.mark(space);
}

void DeviceSpans::end(const device::ExecutionSpace& space) {
  if (!device::kHasQueues || !asked_) return;
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
