// SPDX-License-Identifier: Apache-2.0
#include "pipeline/message_order.hpp"

namespace millrace::pipeline {

/// A rank's entries are those of this order, and replicas take turns entry by entry.
std::map<std::pair<int, int>, std::vector<int>> message_order(const PipelinePlan& plan,
                                                              std::span<const Message> all) {
  const Schedule& schedule = plan.schedule;
  std::map<std::pair<int, int>, std::vector<int>> order;
  for (const Entry& entry : event_order(schedule, links(all))) {
    const Action& action =
        schedule
            .lists[static_cast<std::size_t>(entry.device)][static_cast<std::size_t>(entry.index)];
    if (!is_send(action.kind)) continue;
    const bool gradient = action.kind == ActionKind::SendGradient;
    for (std::int32_t r = 0; r < plan.ranks.replicas; ++r) {
      const int from = plan.ranks.rank_of(r, entry.device);
      const int to = plan.ranks.rank_of(r, schedule.device(action.peer));
      if (from == to) continue;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].from == action.stage && all[i].to == action.peer && all[i].gradient == gradient)
          order[{from, to}].push_back(message_tag(r, i, all.size()));
    }
  }
  return order;
}

}  // namespace millrace::pipeline
