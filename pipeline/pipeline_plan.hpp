// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "pipeline/memory_plan.hpp"
#include "pipeline/program.hpp"
#include "pipeline/rank_map.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::pipeline {

/// How a network runs: its stages, the schedule, and the process of each device. The same on all
/// ranks.
struct PipelinePlan {
  std::vector<OpRange> ranges;  ///< by stage; empty: one stage with the whole network
  Schedule schedule;            ///< with communication, and valid
  RankMap ranks;
  friend bool operator==(const PipelinePlan&, const PipelinePlan&) = default;
};

/// The whole network as one stage, with a Sequential schedule.
[[nodiscard]] PipelinePlan plan_of_one_stage(const Graph& graph, std::int32_t micro_batches);

/// The same stages on the same devices, with forwards only.
[[nodiscard]] PipelinePlan forward_plan(const Graph& graph, const PipelinePlan& plan,
                                        std::int32_t micro_batches);

/// The slots that each stage of a plan needs.
[[nodiscard]] std::vector<Slots> slots_of(const Graph& graph, const PipelinePlan& plan);

}  // namespace millrace::pipeline
