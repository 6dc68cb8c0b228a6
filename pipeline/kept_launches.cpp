// SPDX-License-Identifier: Apache-2.0
#include "pipeline/kept_launches.hpp"

#include <algorithm>

namespace millrace::pipeline {

void KeptLaunches::run_kept(const device::ExecutionSpace& space, Phase phase, std::size_t part,
                            const RunContext& context, const std::function<void()>& queue_work) {
  const Key key{
      phase,          part,          context.stash_slot, context.weight_slot, context.outbox_slot,
      context.member, context.first, context.seed};
  const auto found =
      std::ranges::find_if(phases_, [&](const Kept& kept) { return kept.key == key; });
  if (found == phases_.end()) {
    phases_.push_back({.key = key, .graph = {}});
    return queue_work();
  }
  if (found->state == State::Ran)
    found->state = found->graph.capture(space, queue_work) ? State::Kept : State::CannotBeKept;
  if (found->state == State::Kept) return found->graph.launch(space);
  queue_work();
}

KeptLaunches::Count KeptLaunches::count() const {
  Count count;
  for (const Kept& kept : phases_) {
    count.kept += kept.state == State::Kept ? 1 : 0;
    count.refused += kept.state == State::CannotBeKept ? 1 : 0;
  }
  return count;
}

}  // namespace millrace::pipeline
