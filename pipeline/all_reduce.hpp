// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/transport.hpp"
#include "core/dtype.hpp"
#include "pipeline/parameters.hpp"

namespace millrace::pipeline {

/// The elements that each replica adds up, or sends to all others.
using Parts = std::vector<Elements>;
/// Equal parts of some elements, in whole blocks of 64 bytes of floats.
[[nodiscard]] Parts equal_parts(Elements all, std::int32_t replicas);

/// How messages reach the other replicas of a stage.
struct Peers {
  comm::Transport* transport = nullptr;
  std::span<const int> rank_of;  ///< by replica
  int first_tag = 0;             ///< first of replicas x replicas tags
};
/// A message to or from a replica.
struct PeerMessage {
  std::int32_t replica;
  int number;
};

/// All-gather: each replica sends its part of an array to all others.
class AllGather {
 public:
  AllGather(Parts parts, std::int32_t own);
  /// Part r lies at `place(r)`.
  void bind(const std::function<std::byte*(std::int32_t)>& place, std::int64_t element_bytes,
            const Peers& peers);
  void bind(std::byte* array, std::int64_t element_bytes, const Peers& peers);
  /// Bytes of the messages to and from other processes; `rank_of` is by replica.
  [[nodiscard]] std::int64_t message_bytes(std::int64_t element_bytes,
                                           std::span<const int> rank_of) const;
  /// Begins. This replica's part must be complete, and the other parts must no longer be in use.
  void start();
  /// True once the array is complete.
  [[nodiscard]] bool done() const;
  /// A replica that has not sent its part or not received ours.
  [[nodiscard]] std::int32_t awaited() const;
  /// Waits for this replica, as Transport::wait().
  void wait();

 private:
  Parts parts_;
  std::int32_t own_;
  comm::Transport* transport_ = nullptr;
  std::vector<PeerMessage> messages_;  ///< receives, then sends
};

/// All-reduce of parts of an array of floats over the replicas of a stage, while other work
/// continues. Each replica receives one part from all others, adds them in the order of the
/// replicas (not of arrival) and sends the sum to all. Each replica moves 2 (R-1)/R of the
/// elements, which is the minimum, and all get the same bits, whoever adds them.
class AllReduce {
 public:
  struct Options {
    DType type = DType::F32;  ///< of messages. In 16 bits what is added is rounded to them, and
                              ///< their sum, which is in float32: on every replica, by whom ever
    bool gathers = true;      ///< whether all replicas need all sums, not only of their parts
  };
  /// `parts` by replica; `own` is this replica.
  AllReduce(Parts parts, const Options& options, std::int32_t own);

  /// Bytes of scratch memory that bind() needs.
  [[nodiscard]] std::int64_t bytes() const;
  /// Bytes of the messages to and from other processes; `rank_of` is by replica.
  [[nodiscard]] std::int64_t message_bytes(std::span<const int> rank_of) const;
  /// Tags that all sums of a stage share; if so, they start in the same order on all replicas.
  [[nodiscard]] static int tags(std::int32_t replicas) { return 2 * replicas * replicas; }
  void bind(float* array, std::byte* scratch, const Peers& peers);

  /// Makes ready for what others send, which may come before this replica starts and then needs
  /// memory that no plan counts. Afterwards start() follows. For a transport that
  /// receives_early().
  void expect();
  /// Begins. This replica's elements must be complete.
  void start(const device::ExecutionSpace& space);
  /// Does what is possible without waiting; true once the array has the sums. Nothing is gathered
  /// unless this `may_gather`: all sums of the stage that started before have begun to.
  bool advance(const device::ExecutionSpace& space, bool may_gather);
  /// Whether this sum does not keep those behind it from gathering.
  [[nodiscard]] bool lets_gather() const {
    return state_ == State::Gathering || state_ == State::Idle;
  }
  /// The replica that the sum waits for, or -1.
  [[nodiscard]] std::int32_t awaited() const;
  /// The part that this replica adds up.
  [[nodiscard]] const Elements& own() const { return part(own_); }

 private:
  enum class State { Idle, Scattering, Added, Gathering };

  [[nodiscard]] const Elements& part(std::int32_t replica) const {
    return parts_[static_cast<std::size_t>(replica)];
  }
  [[nodiscard]] bool narrow() const { return options_.type != DType::F32; }
  /// Bytes of a part in messages, aligned.
  [[nodiscard]] std::int64_t stride(std::int32_t replica) const;
  /// Where a part lies as messages have it.
  [[nodiscard]] std::byte* place(std::int32_t replica) const;
  void narrow_part(const device::ExecutionSpace& space, std::int32_t replica) const;
  void widen_part(const device::ExecutionSpace& space, std::int32_t replica) const;
  void add(const device::ExecutionSpace& space) const;

  Parts parts_;
  Options options_;
  std::int32_t own_;
  State state_ = State::Idle;
  float* array_ = nullptr;
  std::byte* received_ = nullptr;
  std::byte* narrow_ = nullptr;  ///< all parts in 16 bits
  comm::Transport* transport_ = nullptr;
  std::vector<PeerMessage> messages_;  ///< of the parts that are added: receives, then sends
  std::size_t receives_ = 0;
  std::size_t started_ = 0;  ///< messages that expect() has started
  AllGather gather_;
};

}  // namespace millrace::pipeline
