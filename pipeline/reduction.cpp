// SPDX-License-Identifier: Apache-2.0
#include "pipeline/reduction.hpp"

#include <algorithm>

#include "device/arena.hpp"
#include "ops/optimiser.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kAlignedFloats = device::kAlignment / kFloat;

}  // namespace

Reduction::Reduction(std::int64_t elements, std::int32_t replicas, std::int32_t own)
    : elements_(elements), replicas_(replicas), own_(own) {}

Reduction::Part Reduction::part(std::int32_t replica) const {
  const std::int64_t blocks = (elements_ + kAlignedFloats - 1) / kAlignedFloats;
  const auto border = [&](std::int64_t r) {
    return std::min(elements_, blocks * r / replicas_ * kAlignedFloats);
  };
  return {border(replica), border(replica + 1) - border(replica)};
}

std::int64_t Reduction::bytes() const {
  return (replicas_ - 1) * device::aligned(part(own_).elements * kFloat);
}

void Reduction::bind(std::span<float> array, std::byte* scratch, comm::Transport& transport,
                     std::span<const int> rank_of, int first_tag) {
  array_ = array;
  scratch_ = reinterpret_cast<float*>(scratch);
  transport_ = &transport;
  const auto bytes = [](const Part& p) { return p.elements * kFloat; };
  const auto at = [&](const Part& p) { return reinterpret_cast<std::byte*>(&array_[0] + p.first); };
  // Tags of a message from a to b: a R + b for the parts, as many again for the sums.
  const auto tag = [&](std::int32_t from, std::int32_t to, std::int32_t phase) {
    return first_tag + (phase * replicas_ + from) * replicas_ + to;
  };
  const Part mine = part(own_);
  std::vector<int> scatter_sends;
  std::vector<int> gather_sends;
  std::byte* place = scratch;
  for (std::int32_t r = 0; r < replicas_; ++r) {
    if (r == own_) continue;
    const int rank = rank_of[static_cast<std::size_t>(r)];
    const Part other = part(r);
    scatter_.push_back(transport.prepare_receive(place, bytes(mine), rank, tag(r, own_, 0)));
    place += device::aligned(bytes(mine));
    scatter_sends.push_back(transport.prepare_send(at(other), bytes(other), rank, tag(own_, r, 0)));
    gather_.push_back(transport.prepare_receive(at(other), bytes(other), rank, tag(r, own_, 1)));
    gather_sends.push_back(transport.prepare_send(at(mine), bytes(mine), rank, tag(own_, r, 1)));
  }
  scatter_.insert(scatter_.end(), scatter_sends.begin(), scatter_sends.end());
  gather_.insert(gather_.end(), gather_sends.begin(), gather_sends.end());
}

void Reduction::start_all(std::span<const int> messages) const {
  for (const int message : messages) transport_->start(message);
}

bool Reduction::all_done(std::span<const int> messages) const {
  return std::all_of(messages.begin(), messages.end(),
                     [&](int message) { return transport_->done(message); });
}

void Reduction::start() {
  if (replicas_ == 1) return;
  MILLRACE_ASSERT(state_ == State::Idle);
  state_ = State::Scattering;
  start_all(scatter_);
}

bool Reduction::advance(const device::ExecutionSpace& space) {
  if (state_ == State::Scattering && all_done(scatter_)) {
    const Part mine = part(own_);
    ops::add_parts(space, mine.elements, array_.data() + mine.first, scratch_,
                   device::aligned(mine.elements * kFloat) / kFloat, own_, replicas_);
    device::fence(space);
    state_ = State::Gathering;
    start_all(gather_);
  }
  if (state_ == State::Gathering && all_done(gather_)) state_ = State::Idle;
  return state_ == State::Idle;
}

std::int32_t Reduction::awaited() const {
  if (state_ == State::Idle) return -1;
  const std::vector<int>& messages = state_ == State::Scattering ? scatter_ : gather_;
  for (std::int32_t r = 0, i = 0; r < replicas_; ++r) {
    if (r == own_) continue;
    const bool received = transport_->done(messages[static_cast<std::size_t>(i++)]);
    if (!received) return r;
  }
  return own_ == 0 ? 1 : 0;
}

}  // namespace millrace::pipeline
