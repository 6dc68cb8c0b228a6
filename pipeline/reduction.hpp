// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/transport.hpp"
#include "device/tensor.hpp"

namespace millrace::pipeline {

/// Where the replicas' parts of an array begin, in elements, and the end of the last: R + 1
/// numbers.
using Borders = std::vector<std::int64_t>;
/// Equal parts, but for whole blocks of 64 bytes of floats.
[[nodiscard]] Borders equal_parts(std::int64_t elements, std::int32_t replicas);

/// The other replicas of a stage, as messages see them.
struct Peers {
  comm::Transport* transport = nullptr;
  std::span<const int> rank_of;  ///< by replica
  int first_tag = 0;             ///< of replicas x replicas
};

/// Each replica sends its part of an array to all others, so that all have all of it.
class Gather {
 public:
  /// Of every part only what lies at element `begin` or behind it is sent.
  Gather(Borders borders, std::int64_t begin, std::int32_t own);
  void bind(std::byte* array, std::int64_t element_bytes, const Peers& peers);
  /// Begins: this replica's part is complete, and nobody reads the others any more.
  void start();
  /// True once the array is complete.
  [[nodiscard]] bool done() const;
  /// A replica that has not sent its part, or one that has not taken ours.
  [[nodiscard]] std::int32_t awaited() const;

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

/// Adds up an array over the replicas of a stage while other work goes on, in the order of the
/// replicas whatever arrives first: each replica is sent one part of the array by all others, adds
/// the parts in their order, and sends the sum to all. Every replica moves 2 (R-1)/R of the array,
/// the least that is possible, and all end with the same bits.
class Reduction {
 public:
  /// Parts of an array of floats by replica, of which this is number `own`. Sums before element
  /// `gathered_from` stay with the replica that added them up.
  Reduction(const Borders& borders, std::int64_t gathered_from, std::int32_t own);

  /// Scratch memory that bind() will be given.
  [[nodiscard]] std::int64_t bytes() const;
  /// Tags [first_tag, first_tag + tags(replicas)) are for the messages of this reduction.
  void bind(std::span<float> array, std::byte* scratch, const Peers& peers);
  [[nodiscard]] static int tags(std::int32_t replicas) { return 2 * replicas * replicas; }

  /// Begins: this replica's array is complete.
  void start();
  /// Does what can be done without waiting; true once the array holds the sums.
  bool advance(const device::ExecutionSpace& space);
  /// What it waits for now, when one advance() was not enough: a replica, or -1.
  [[nodiscard]] std::int32_t awaited() const;
  /// First element of the part that this replica adds up, and how many they are.
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
  std::vector<int> receives_;  ///< of the other replicas, in their order
  std::vector<int> sends_;
  Gather gather_;
};

}  // namespace millrace::pipeline
