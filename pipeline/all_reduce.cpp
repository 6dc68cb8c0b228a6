// SPDX-License-Identifier: Apache-2.0
#include "pipeline/all_reduce.hpp"

#include <algorithm>
#include <utility>

#include "device/arena.hpp"
#include "device/queues.hpp"
#include "ops/elementwise.hpp"
#include "ops/optimiser.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::int64_t kAlignedFloats = device::kAlignment / std::int64_t{sizeof(float)};

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

std::int32_t replicas_of(const Parts& parts) { return static_cast<std::int32_t>(parts.size()); }

/// The replica of the first message that is not done, or -1.
std::int32_t first_not_done(comm::Transport& transport, std::span<const PeerMessage> messages) {
  for (const PeerMessage& message : messages)
    if (!transport.done(message.number)) return message.replica;
  return -1;
}

/// Tag of a message between two replicas.
int tag(const Peers& peers, std::int32_t from, std::int32_t to) {
  return peers.first_tag + from * static_cast<int>(peers.rank_of.size()) + to;
}

}  // namespace

Parts equal_parts(Elements all, std::int32_t replicas) {
  const std::int64_t blocks = (all.count() + kAlignedFloats - 1) / kAlignedFloats;
  const auto border = [&](std::int64_t r) {
    return std::min(all.last, all.first + blocks * r / replicas * kAlignedFloats);
  };
  Parts parts;
  for (std::int64_t r = 0; r < replicas; ++r) parts.push_back({border(r), border(r + 1)});
  return parts;
}

AllGather::AllGather(Parts parts, std::int32_t own) : parts_(std::move(parts)), own_(own) {}

void AllGather::bind(const std::function<std::byte*(std::int32_t)>& place,
                     std::int64_t element_bytes, const Peers& peers) {
  transport_ = peers.transport;
  const std::int64_t own_bytes = parts_[at(own_)].count() * element_bytes;
  const std::int32_t replicas = replicas_of(parts_);
  for (std::int32_t r = 0; r < replicas; ++r)
    if (const std::int64_t bytes = parts_[at(r)].count() * element_bytes; r != own_ && bytes > 0)
      messages_.push_back({r, transport_->prepare_receive(place(r), bytes, peers.rank_of[at(r)],
                                                          tag(peers, r, own_))});
  for (std::int32_t r = 0; r < replicas; ++r)
    if (r != own_ && own_bytes > 0)
      messages_.push_back({r, transport_->prepare_send(place(own_), own_bytes, peers.rank_of[at(r)],
                                                       tag(peers, own_, r))});
}

void AllGather::bind(std::byte* array, std::int64_t element_bytes, const Peers& peers) {
  bind([&](std::int32_t r) { return array + parts_[at(r)].first * element_bytes; }, element_bytes,
       peers);
}

std::int64_t AllGather::message_bytes(std::int64_t element_bytes,
                                      std::span<const int> rank_of) const {
  std::int64_t elements = 0;
  for (std::int32_t r = 0; r < replicas_of(parts_); ++r)
    if (rank_of[at(r)] != rank_of[at(own_)])
      elements += parts_[at(r)].count() + parts_[at(own_)].count();
  return elements * element_bytes;
}

void AllGather::start() {
  for (const PeerMessage& message : messages_) transport_->start(message.number);
}

bool AllGather::done() const { return awaited() < 0; }

std::int32_t AllGather::awaited() const { return first_not_done(*transport_, messages_); }

void AllGather::wait() {
  for (const PeerMessage& message : messages_)
    if (!transport_->done(message.number)) return transport_->wait(message.number);
}

AllReduce::AllReduce(Parts parts, const Options& options, std::int32_t own)
    : parts_(std::move(parts)), options_(options), own_(own), gather_(parts_, own) {}

std::int64_t AllReduce::stride(std::int32_t replica) const {
  return device::aligned(part(replica).count() * size_of(options_.type));
}

std::int64_t AllReduce::bytes() const {
  const std::int32_t replicas = replicas_of(parts_);
  std::int64_t bytes = (replicas - 1) * stride(own_);
  for (std::int32_t r = 0; narrow() && r < replicas; ++r) bytes += stride(r);
  return bytes;
}

std::int64_t AllReduce::message_bytes(std::span<const int> rank_of) const {
  const std::int64_t element_bytes = size_of(options_.type);
  std::int64_t bytes = options_.gathers ? gather_.message_bytes(element_bytes, rank_of) : 0;
  for (std::int32_t r = 0; r < replicas_of(parts_); ++r)
    if (rank_of[at(r)] != rank_of[at(own_)])
      bytes += (own().count() + part(r).count()) * element_bytes;
  return bytes;
}

std::byte* AllReduce::place(std::int32_t replica) const {
  if (!narrow()) return reinterpret_cast<std::byte*>(array_ + part(replica).first);
  std::byte* place = narrow_;
  for (std::int32_t r = 0; r < replica; ++r) place += stride(r);
  return place;
}

void AllReduce::bind(float* array, std::byte* scratch, const Peers& peers) {
  array_ = array;
  received_ = scratch;
  narrow_ = scratch + (replicas_of(parts_) - 1) * stride(own_);
  transport_ = peers.transport;
  const std::int64_t element_bytes = size_of(options_.type);
  const auto for_others = [&](const auto& work) {
    for (std::int32_t r = 0; r < replicas_of(parts_); ++r)
      if (r != own_) work(r, peers.rank_of[at(r)]);
  };
  for_others([&](std::int32_t r, int rank) {
    if (own().count() > 0)
      messages_.push_back({r, transport_->prepare_receive(scratch, own().count() * element_bytes,
                                                          rank, tag(peers, r, own_))});
    scratch += stride(own_);
  });
  receives_ = messages_.size();
  for_others([&](std::int32_t r, int rank) {
    if (part(r).count() > 0)
      messages_.push_back({r, transport_->prepare_send(place(r), part(r).count() * element_bytes,
                                                       rank, tag(peers, own_, r))});
  });
  if (!options_.gathers) return;
  Peers gathering = peers;
  gathering.first_tag += tags(replicas_of(parts_)) / 2;
  gather_.bind([this](std::int32_t r) { return place(r); }, element_bytes, gathering);
}

void AllReduce::narrow_part(const device::ExecutionSpace& space, std::int32_t replica) const {
  device::dispatch(options_.type, [&]<class T>() {
    ops::convert(space, reinterpret_cast<T*>(place(replica)), array_ + part(replica).first,
                 part(replica).count());
  });
}

void AllReduce::widen_part(const device::ExecutionSpace& space, std::int32_t replica) const {
  device::dispatch(options_.type, [&]<class T>() {
    ops::widen(space, array_ + part(replica).first, reinterpret_cast<const T*>(place(replica)),
               part(replica).count());
  });
}

void AllReduce::expect() {
  for (; started_ < receives_; ++started_) transport_->start(messages_[started_].number);
}

void AllReduce::start(const device::ExecutionSpace& space) {
  const std::int32_t replicas = replicas_of(parts_);
  if (replicas == 1) return;
  MILLRACE_ASSERT(state_ == State::Idle);
  state_ = State::Scattering;
  for (std::int32_t r = 0; narrow() && r < replicas; ++r) narrow_part(space, r);
  if (narrow()) device::settle(space);
  for (; started_ < messages_.size(); ++started_) transport_->start(messages_[started_].number);
  started_ = 0;
}

void AllReduce::add(const device::ExecutionSpace& space) const {
  if (narrow()) widen_part(space, own_);
  device::dispatch(options_.type, [&]<class T>() {
    ops::add_parts(space, own().count(), array_ + own().first,
                   reinterpret_cast<const T*>(received_), stride(own_) / size_of(options_.type),
                   own_, replicas_of(parts_));
  });
  if (narrow()) {
    narrow_part(space, own_);
    widen_part(space, own_);
  }
  device::settle(space);
}

bool AllReduce::advance(const device::ExecutionSpace& space, bool may_gather) {
  if (state_ == State::Scattering && first_not_done(*transport_, messages_) < 0) {
    add(space);
    state_ = options_.gathers ? State::Added : State::Idle;
  }
  if (state_ == State::Added && may_gather) {
    gather_.start();
    state_ = State::Gathering;
  }
  if (state_ == State::Gathering && gather_.done()) {
    for (std::int32_t r = 0; narrow() && r < replicas_of(parts_); ++r)
      if (r != own_) widen_part(space, r);
    device::settle(space);
    state_ = State::Idle;
  }
  return state_ == State::Idle;
}

std::int32_t AllReduce::awaited() const {
  if (state_ == State::Idle) return -1;
  const std::int32_t replica =
      state_ == State::Gathering ? gather_.awaited() : first_not_done(*transport_, messages_);
  return replica >= 0 ? replica : own_;
}

}  // namespace millrace::pipeline
