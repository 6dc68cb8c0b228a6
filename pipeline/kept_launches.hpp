// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "device/launch_graph.hpp"
#include "pipeline/kernels.hpp"

namespace millrace::pipeline {

/// The launches of a program's phases, kept where the device can do that. What a kernel gets from
/// its context by value is part of the key; what else changes, it reads from CallValues.
class KeptLaunches {
 public:
  /// Queues the kernels of a part of a phase. The first time with a key `queue_work` does that,
  /// while libraries load what they need; the second time its launches are kept, and they are all
  /// that is launched from then on.
  template <class QueueWork>
  void run(const device::ExecutionSpace& space, Phase phase, std::size_t part,
           const RunContext& context, const QueueWork& queue_work) {
    if constexpr (device::kHasGraphs)
      run_kept(space, phase, part, context, std::cref(queue_work));
    else
      queue_work();
  }
  void clear() { phases_.clear(); }

  struct Count {
    int kept = 0;
    int refused = 0;  ///< by the device
  };
  [[nodiscard]] Count count() const;

 private:
  struct Key {
    Phase phase;
    std::size_t part;
    int stash_slot;
    int weight_slot;
    int outbox_slot;
    int member;
    bool first;
    std::uint64_t seed;
    friend bool operator==(const Key&, const Key&) = default;
  };
  enum class State { Ran, Kept, CannotBeKept };
  struct Kept {
    Key key;
    State state = State::Ran;
    device::LaunchGraph graph;
  };

  void run_kept(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                const RunContext& context, const std::function<void()>& queue_work);

  std::vector<Kept> phases_;
};

}  // namespace millrace::pipeline
