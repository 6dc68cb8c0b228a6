// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/memory_plan.hpp"
#include "pipeline/program.hpp"
#include "pipeline/schedule/schedule.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::pipeline {

/// A point-to-point message: one value, or its gradient, that goes from one stage to another for
/// every micro-batch. Stages on one device exchange it as a copy.
struct Message {
  ValueId value;
  std::int32_t from = 0;  ///< stages
  std::int32_t to = 0;
  bool gradient = false;
  friend auto operator<=>(const Message&,
                          const Message&) = default;  // NOLINT(modernize-use-nullptr)
};

/// What a network that is cut into `ranges` (which cover it, in order) sends. A value goes from the
/// stage that makes it to every stage that reads it. Its gradient, if it is needed, comes back from
/// reader to reader, last reader first. Sorted, so that a message's index can be its tag.
[[nodiscard]] std::vector<Message> messages(const Graph& graph, std::span<const OpRange> ranges);

/// The same as links between stages, sorted.
[[nodiscard]] std::vector<Link> links(std::span<const Message> messages);
[[nodiscard]] std::vector<Link> links(const Graph& graph, std::span<const OpRange> ranges);

/// An entry of a rank's list.
struct PlanEntry {
  std::int32_t replica = 0;
  Entry entry;  ///< its device, of the replica; and its place in the list of the device or rank
  Action action;
};

/// What each rank executes, in an order that always finishes. Without a joint order a rank merges
/// the lists of its devices, and replicas take turns entry by entry, so that the entries of a team
/// are adjacent. `links` are those of a replica.
[[nodiscard]] std::vector<std::vector<PlanEntry>> lists_by_rank(const PipelinePlan& plan,
                                                                std::span<const Link> links);

/// The compute actions of lists_by_rank() as a joint order.
[[nodiscard]] Schedule joint_order(const PipelinePlan& plan, std::span<const Link> links);

/// A joint order of compute actions with communication. All ranks wait for the sums of stages over
/// replicas in the same order. Errors: as validate.
[[nodiscard]] Schedule joint_schedule(const Schedule& compute, std::span<const Link> links,
                                      std::int32_t replicas);

/// The links and costs of all units, from those of a replica.
[[nodiscard]] std::vector<Link> links_of_units(std::span<const Link> links, std::int32_t stages,
                                               std::int32_t replicas);
[[nodiscard]] Costs costs_of_units(const Costs& costs, std::int32_t replicas);

/// A step of a replica, or with a joint order of all ranks; `costs` are by stage.
[[nodiscard]] TimeLine simulate(const PipelinePlan& plan, std::span<const Link> links,
                                const Costs& costs);
/// Lower bound on its seconds, for any order.
[[nodiscard]] double lower_bound_seconds(const PipelinePlan& plan, const Costs& costs);

/// The whole network as one stage, with a Sequential schedule.
[[nodiscard]] PipelinePlan plan_of_one_stage(const Graph& graph, std::int32_t micro_batches);

/// The same stages on the same devices, with forwards only.
[[nodiscard]] PipelinePlan forward_plan(const Graph& graph, const PipelinePlan& plan,
                                        std::int32_t micro_batches);

/// The slots that each unit of a plan needs.
[[nodiscard]] std::vector<Slots> slots_of(const Graph& graph, const PipelinePlan& plan);

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
