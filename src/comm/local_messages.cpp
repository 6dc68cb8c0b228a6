// SPDX-License-Identifier: Apache-2.0
#include "comm/local_messages.hpp"

#include "core/error.hpp"

namespace millrace::comm {

void LocalMessages::Ring::push(int number) {
  MILLRACE_ASSERT(size_ < places_.size());
  places_[(first_ + size_++) % places_.size()] = number;
}

int LocalMessages::Ring::pop() {
  const int number = places_[first_];
  first_ = (first_ + 1) % places_.size();
  --size_;
  return number;
}

int LocalMessages::add(std::byte* to, const std::byte* from, std::int64_t bytes, int tag) {
  Line& line = lines_.try_emplace(tag).first->second;
  const int number = static_cast<int>(ends_.size());
  ends_.push_back({&line, to, from, bytes, true});
  // Reserve a place for every message now, so that start() never allocates.
  (to != nullptr ? line.receives : line.sends).add_place();
  return number;
}

void LocalMessages::start(int number) {
  End& end = ends_[static_cast<std::size_t>(number)];
  MILLRACE_ASSERT(end.done);
  end.done = false;
  const bool receives = end.to != nullptr;
  (receives ? end.line->receives : end.line->sends).push(number);
  deliver(*end.line);
}

void LocalMessages::deliver(Line& line) {
  if (line.sends.empty() || line.receives.empty()) return;
  End& send = ends_[static_cast<std::size_t>(line.sends.pop())];
  End& receive = ends_[static_cast<std::size_t>(line.receives.pop())];
  MILLRACE_ASSERT(send.bytes == receive.bytes);
  copy_(receive.to, send.from, send.bytes);
  send.done = true;
  receive.done = true;
}

}  // namespace millrace::comm
