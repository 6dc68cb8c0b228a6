// SPDX-License-Identifier: Apache-2.0
#include "pipeline/all_reduce.hpp"

#include <algorithm>
#include <utility>

#include "device/arena.hpp"
#include "device/queues.hpp"
#include "ops/optimiser.hpp"

namespace millrace::pipeline {
namespace {

constexpr std::int64_t kFloat = sizeof(float);
constexpr std::int64_t kAlignedFloats = device::kAlignment / kFloat;

std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

std::int32_t replicas_of(const Borders& borders) {
  return static_cast<std::int32_t>(borders.size()) - 1;
}

/// Tag of a message between two replicas.
int tag(const Peers& peers, std::int32_t replicas, std::int32_t from, std::int32_t to) {
  return peers.first_tag + from * replicas + to;
}

}  // namespace

Borders equal_parts(std::int64_t elements, std::int32_t replicas) {
  const std::int64_t blocks = (elements + kAlignedFloats - 1) / kAlignedFloats;
  Borders borders;
  for (std::int64_t r = 0; r <= replicas; ++r)
    borders.push_back(std::min(elements, blocks * r / replicas * kAlignedFloats));
  return borders;
}

AllGather::AllGather(Borders borders, std::int64_t begin, std::int32_t own)
    : borders_(std::move(borders)), begin_(begin), own_(own) {}

std::int64_t AllGather::part_begin(std::int32_t replica) const {
  return std::clamp(begin_, borders_[at(replica)], borders_[at(replica) + 1]);
}

std::int64_t AllGather::part_end(std::int32_t replica) const { return borders_[at(replica) + 1]; }

void AllGather::bind(std::byte* array, std::int64_t element_bytes, const Peers& peers) {
  transport_ = peers.transport;
  const std::int32_t replicas = replicas_of(borders_);
  const auto place = [&](std::int32_t r) { return array + part_begin(r) * element_bytes; };
  const auto bytes = [&](std::int32_t r) { return (part_end(r) - part_begin(r)) * element_bytes; };
  for (std::int32_t r = 0; r < replicas; ++r)
    if (r != own_ && bytes(r) > 0)
      messages_.push_back({r, transport_->prepare_receive(place(r), bytes(r), peers.rank_of[at(r)],
                                                          tag(peers, replicas, r, own_))});
  for (std::int32_t r = 0; r < replicas; ++r)
    if (r != own_ && bytes(own_) > 0)
      messages_.push_back(
          {r, transport_->prepare_send(place(own_), bytes(own_), peers.rank_of[at(r)],
                                       tag(peers, replicas, own_, r))});
}

std::int64_t AllGather::message_bytes(std::int64_t element_bytes,
                                      std::span<const int> rank_of) const {
  std::int64_t elements = 0;
  for (std::int32_t r = 0; r < replicas_of(borders_); ++r)
    if (rank_of[at(r)] != rank_of[at(own_)])
      elements += part_end(r) - part_begin(r) + part_end(own_) - part_begin(own_);
  return elements * element_bytes;
}

void AllGather::start() {
  for (const Message& message : messages_) transport_->start(message.number);
}

bool AllGather::done() const {
  return std::all_of(messages_.begin(), messages_.end(),
                     [&](const Message& message) { return transport_->done(message.number); });
}

std::int32_t AllGather::awaited() const {
  for (const Message& message : messages_)
    if (!transport_->done(message.number)) return message.replica;
  return -1;
}

void AllGather::wait() {
  for (const Message& message : messages_)
    if (!transport_->done(message.number)) return transport_->wait(message.number);
}

AllReduce::AllReduce(const Borders& borders, std::int64_t gathered_from, std::int32_t own)
    : borders_(borders),
      replicas_(replicas_of(borders)),
      own_(own),
      gather_(borders, gathered_from, own) {}

std::int64_t AllReduce::bytes() const {
  return (replicas_ - 1) * device::aligned(elements() * kFloat);
}

std::int64_t AllReduce::message_bytes(std::span<const int> rank_of) const {
  std::int64_t bytes = gather_.message_bytes(kFloat, rank_of);
  for (std::int32_t r = 0; r < replicas_; ++r)
    if (rank_of[at(r)] != rank_of[at(own_)])
      bytes += (elements() + borders_[at(r) + 1] - borders_[at(r)]) * kFloat;
  return bytes;
}

void AllReduce::bind(std::span<float> array, std::byte* scratch, const Peers& peers) {
  array_ = array;
  scratch_ = reinterpret_cast<float*>(scratch);
  transport_ = peers.transport;
  const std::int64_t own_bytes = elements() * kFloat;
  for (std::int32_t r = 0; r < replicas_; ++r) {
    if (r == own_) continue;
    const int rank = peers.rank_of[at(r)];
    const std::int64_t first = borders_[at(r)];
    receives_.push_back(
        transport_->prepare_receive(scratch, own_bytes, rank, tag(peers, replicas_, r, own_)));
    scratch += device::aligned(own_bytes);
    sends_.push_back(transport_->prepare_send(
        reinterpret_cast<const std::byte*>(array.data() + first),
        (borders_[at(r) + 1] - first) * kFloat, rank, tag(peers, replicas_, own_, r)));
  }
  gather_.bind(reinterpret_cast<std::byte*>(array.data()), kFloat, peers);
}

void AllReduce::start() {
  if (replicas_ == 1) return;
  MILLRACE_ASSERT(state_ == State::Idle);
  state_ = State::Scattering;
  for (const int message : receives_) transport_->start(message);
  for (const int message : sends_) transport_->start(message);
}

bool AllReduce::advance(const device::ExecutionSpace& space) {
  const auto done = [&](int message) { return transport_->done(message); };
  if (state_ == State::Scattering && std::all_of(receives_.begin(), receives_.end(), done) &&
      std::all_of(sends_.begin(), sends_.end(), done)) {
    ops::add_parts(space, elements(), array_.data() + first(), scratch_,
                   device::aligned(elements() * kFloat) / kFloat, own_, replicas_);
    device::settle(space);
    state_ = State::Gathering;
    gather_.start();
  }
  if (state_ == State::Gathering && gather_.done()) state_ = State::Idle;
  return state_ == State::Idle;
}

std::int32_t AllReduce::awaited() const {
  if (state_ == State::Idle) return -1;
  if (state_ == State::Gathering) return gather_.awaited();
  for (std::int32_t r = 0, i = 0; r < replicas_; ++r) {
    if (r == own_) continue;
    if (!transport_->done(receives_[at(i++)])) return r;
  }
  return own_ == 0 ? 1 : 0;
}

}  // namespace millrace::pipeline
