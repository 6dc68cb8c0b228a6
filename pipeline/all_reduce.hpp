// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/transport.hpp"
#include "device/tensor.hpp"

namespace millrace::pipeline {

/// Begins of the replicas' parts of an array, in elements, and the end of the last part: R + 1
/// numbers.
using Borders = std::vector<std::int64_t>;
/// Equal parts of an array of floats, in whole blocks of 64 bytes.
[[nodiscard]] Borders equal_parts(std::int64_t elements, std::int32_t replicas);

/// How messages reach the other replicas of a stage.
struct Peers {
  comm::Transport* transport = nullptr;
  std::span<const int> rank_of;  ///< by replica
  int first_tag = 0;             ///< first of replicas x replicas tags
};

/// All-gather: each replica sends its part of an array to all others.
class AllGather {
 public:
  /// Only elements from `begin` on are sent.
  AllGather(Borders borders, std::int64_t begin, std::int32_t own);
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
  struct Message {
    std::int32_t replica;
    int number;
  };
  [[nodiscard]] std::int64_t part_begin(std::int32_t replica) const;
  [[nodiscard]] std::int64_t part_end(std::int32_t replica) const;

  Borders borders_;
  std::int64_t begin_;
  std::int32_t own_;
  comm::Transport* transport_ = nullptr;
  std::vector<Message> messages_;  ///< receives, then sends
};

/// All-reduce of an array over the replicas of a stage, while other work continues. Each replica
/// receives one part of the array from all others, adds them in the order of the replicas (not of
/// arrival) and sends the sum to all. Each replica moves 2 (R-1)/R of the array, which is the
/// minimum, and all get the same bits.
class AllReduce {
 public:
  /// `borders` are the parts of an array of floats by replica; `own` is this replica. Sums before
  /// element `gathered_from` are not sent to the other replicas.
  AllReduce(const Borders& borders, std::int64_t gathered_from, std::int32_t own);

  /// Bytes of scratch memory that bind() needs.
  [[nodiscard]] std::int64_t bytes() const;
  /// Bytes of the messages to and from other processes; `rank_of` is by replica.
  [[nodiscard]] std::int64_t message_bytes(std::span<const int> rank_of) const;
  /// Parts and sums between two replicas use the same tag, as parts always come first.
  void bind(std::span<float> array, std::byte* scratch, const Peers& peers);

  /// Begins. This replica's array must be complete.
  void start();
  /// Does what is possible without waiting; true once the array has the sums.
  bool advance(const device::ExecutionSpace& space);
  /// The replica that the sum waits for, or -1.
  [[nodiscard]] std::int32_t awaited() const;
  /// First element and number of elements of the part that this replica adds up.
  [[nodiscard]] std::int64_t first() const { return borders_[static_cast<std::size_t>(own_)]; }
  [[nodiscard]] std::int64_t elements() const {
    return borders_[static_cast<std::size_t>(own_) + 1] - first();
  }

 private:
  enum class State { Idle, Scattering, Gathering };

  Borders borders_;
  std::int32_t replicas_;
  std::int32_t own_;
  State state_ = State::Idle;
  std::span<float> array_;
  float* scratch_ = nullptr;
  comm::Transport* transport_ = nullptr;
  std::vector<int> receives_;  ///< from the other replicas, in their order
  std::vector<int> sends_;
  AllGather gather_;
};

}  // namespace millrace::pipeline
