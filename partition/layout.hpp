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
                                                  const pipeline::ProgramOptions& program,
                                                  const DeviceModel& device);
/// The costs of a request's ops: those that it gives, or the estimates for its device.
[[nodiscard]] std::vector<OpCost> costs_of(const Graph& graph, const PlanRequest& request);

/// What a run may do to stay within the memory of its devices.
struct Room {
  std::int64_t bytes = 0;  ///< for the stages of a device; 0: no limit
  bool repeats = false;    ///< whether forward passes may be repeated to fit
};

/// A schedule that is not the first choice must take this much less time.
inline constexpr double kWorthIt = 0.999;

/// The best plan with cuts between layers, or one with cuts inside blocks if it is clearly faster.
/// `memory_limit`: bytes of a device; 0: none. Errors: as best_plans.
[[nodiscard]] Plan automatic_plan(const Graph& graph, std::span<const OpCost> costs,
                                  const PlanRequest& request, std::int64_t memory_limit);

/// The name of the schedule that is made for the costs of its stages.
inline constexpr std::string_view kAutomatic = "auto";

/// A schedule with the plan that is fastest with it.
struct ScheduleChoice {
  pipeline::ScheduleRequest schedule;  ///< with kAutomatic the actions are automatic_schedule's
  Plan plan;
};
/// All schedules that `open` leaves the choice of, in the order of their table: those with a stage
/// on each of its devices, and those with two or, looped, four, if the network has enough cuts.
[[nodiscard]] std::vector<pipeline::ScheduleRequest> schedules_for(
    const Graph& graph, const pipeline::ScheduleRequest& open);

/// The fastest of schedules_for(), each with cuts of its own, and of automatic_schedule. Among
/// schedules that are equally fast within 0.1 %, the first in the table of schedules.
/// `request.schedule` gives the numbers of devices and micro-batches. `memory_limit`: bytes of a
/// device; 0: none. Errors: Config if none fits in memory.
[[nodiscard]] ScheduleChoice choose_schedule(const Graph& graph, std::span<const OpCost> costs,
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

/// The splits for speed that fit into `room`, with repeated passes where that is faster than the
/// cuts that fit without them. If none fit: those that need the least, as far as that can be found.
/// Errors: Config for too few cuts.
[[nodiscard]] std::vector<std::string> fitting_splits(const Graph& graph,
                                                      const PlanRequest& request, const Room& room);
/// The fastest schedule with its cuts, likewise; if none fit, Sequential, which needs the least.
[[nodiscard]] ScheduleChoice fitting_schedule(const Graph& graph, const PlanRequest& request,
                                              const Room& room);

/// The costs of a step of these stages, estimated from the arithmetic of their ops.
[[nodiscard]] pipeline::Costs estimated_step(const Graph& graph, std::span<const OpRange> stages,
                                             const PlanRequest& request);

/// The compute actions made for the costs of these very stages. `request.schedule` gives their
/// devices and the number of micro-batches. No schedule that keeps a stage on each device and holds
/// no more micro-batches than Grouped is faster.
[[nodiscard]] pipeline::Schedule automatic_schedule(const Graph& graph,
                                                    std::span<const OpRange> stages,
                                                    const pipeline::Costs& costs,
                                                    const pipeline::ScheduleRequest& request);

}  // namespace millrace::partition
