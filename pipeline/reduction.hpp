// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/transport.hpp"
#include "device/tensor.hpp"

namespace millrace::pipeline {

/// Adds up an array over the replicas of a stage while other work goes on, in the order of the
/// replicas whatever arrives first: each replica is sent one part of the array by all others, adds
/// the parts in their order, and sends the sum to all. Every replica moves 2 (R-1)/R of the array,
/// the least that is possible, and all end with the same bits.
class Reduction {
 public:
  /// `elements` floats over `replicas`, of which this is number `own`.
  Reduction(std::int64_t elements, std::int32_t replicas, std::int32_t own);

  /// Scratch memory that bind() will be given.
  [[nodiscard]] std::int64_t bytes() const;
  /// `rank_of` and tags [first_tag, first_tag + tags(replicas)) are for the messages of this stage.
  void bind(std::span<float> array, std::byte* scratch, comm::Transport& transport,
            std::span<const int> rank_of, int first_tag);
  [[nodiscard]] static int tags(std::int32_t replicas) { return 2 * replicas * replicas; }

  /// Begins: this replica's array is complete.
  void start();
  /// Does what can be done without waiting; true once the array holds the sums.
  bool advance(const device::ExecutionSpace& space);
  /// What it waits for now, when one advance() was not enough: a replica, or -1.
  [[nodiscard]] std::int32_t awaited() const;

 private:
  enum class State { Idle, Scattering, Gathering };
  struct Part {
    std::int64_t first = 0;
    std::int64_t elements = 0;
  };
  [[nodiscard]] Part part(std::int32_t replica) const;
  [[nodiscard]] bool all_done(std::span<const int> messages) const;
  void start_all(std::span<const int> messages) const;

  std::int64_t elements_;
  std::int32_t replicas_;
  std::int32_t own_;
  State state_ = State::Idle;
  std::span<float> array_;
  float* scratch_ = nullptr;
  comm::Transport* transport_ = nullptr;
  std::vector<int> scatter_;  ///< receives, then sends
  std::vector<int> gather_;
};

}  // namespace millrace::pipeline
