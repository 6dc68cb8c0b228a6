// SPDX-License-Identifier: Apache-2.0
//
// The decisions about the layout of a run that its options leave open: where it is cut, and in
// which order its stages compute.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "partition/balance.hpp"
#include "partition/cost.hpp"
#include "partition/plan.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::partition {

/// Costs of the ops of a run, estimated from their arithmetic.
[[nodiscard]] std::vector<OpCost> estimated_costs(const Graph& graph,
                                                  const pipeline::ProgramOptions& program);

/// The best plan with cuts between layers, or one with cuts inside blocks if it is clearly faster.
/// `memory_limit`: bytes of a device; 0: none. Errors: as best_plans.
[[nodiscard]] Plan automatic_plan(const Graph& graph, std::span<const OpCost> costs,
                                  const PlanRequest& request, std::int64_t memory_limit);

/// What a run is cut for.
struct SplitRequest {
  enum class For {
    Speed,  ///< a pipeline: the splits of automatic_plan
    Memory  ///< shards with a single micro-batch, which divide memory and not time
  } aim = For::Speed;
  std::int64_t memory_limit = 0;  ///< for speed: bytes of a device; 0: none
  LayerFilter filter = {};        ///< for memory: where cuts are allowed
};
/// The splits of a run that names none. Errors: as best_plans and shard_by_memory.
[[nodiscard]] std::vector<std::string> choose_splits(const Graph& graph, const PlanRequest& request,
                                                     const SplitRequest& splits);

/// The costs of these stages, by stage.
[[nodiscard]] std::vector<pipeline::StageCost> stage_costs(const Graph& graph,
                                                           std::span<const OpRange> stages,
                                                           const pipeline::ProgramOptions& program);

/// The compute actions made for the costs of these very stages. `request` gives their devices and
/// the number of micro-batches.
[[nodiscard]] pipeline::Schedule automatic_schedule(const Graph& graph,
                                                    std::span<const OpRange> stages,
                                                    std::vector<pipeline::StageCost> costs,
                                                    const pipeline::ScheduleRequest& request);

}  // namespace millrace::partition
