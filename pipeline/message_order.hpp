// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/messages.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::pipeline {

/// Tag of message number `index` of a network with `messages` of them, in one replica.
[[nodiscard]] constexpr int message_tag(std::int32_t replica, std::size_t index,
                                        std::size_t messages) {
  return static_cast<int>(static_cast<std::size_t>(replica) * messages + index);
}

/// By two different ranks, sender and receiver: the tags of all activations and gradients of a run
/// of the plan, in the order in which the sender starts them. The receiver, which posts them early,
/// learns it from here. `all` are the messages of the network.
[[nodiscard]] std::map<std::pair<int, int>, std::vector<int>> message_order(
    const PipelinePlan& plan, std::span<const Message> all);

}  // namespace millrace::pipeline
