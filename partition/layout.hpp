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
/// A schedule that a search may choose; see best_of(). `least`: seconds of a step.
struct ScheduleCandidate {
  double least = 0.0;
  pipeline::ScheduleRequest schedule;
};
/// All schedules that `open` leaves the choice of, in the order of their table: those with a stage
/// on each of its devices, and those with two or, looped, four, if the network has enough cuts. A
/// single device has nothing to wait for: Sequential alone.
[[nodiscard]] std::vector<ScheduleCandidate> schedules_for(const Graph& graph,
                                                           const pipeline::ScheduleRequest& open);

/// The fastest of schedules_for(), each with cuts of its own, and of automatic_schedule. Among
/// schedules that are equally fast within 0.1 %, the first in the table of schedules.
/// `request.schedule` gives the numbers of devices and micro-batches. `memory_limit`: bytes of a
/// device; 0: none. Errors: Config if none fits in memory.
[[nodiscard]] ScheduleChoice choose_schedule(const Graph& graph, std::span<const OpCost> costs,
                                             const PlanRequest& request, std::int64_t memory_limit);

/// The cuts between layers, where `filter` allows them, that minimize the memory of the largest
/// device: for shards that divide memory and not time. Errors: as shard_by_memory.
[[nodiscard]] std::vector<std::string> splits_by_memory(const Graph& graph,
                                                        const PlanRequest& request,
                                                        const LayerFilter& filter = {});

/// What a run leaves open: the cuts, and with them perhaps the schedule.
enum class Open { Cuts, ScheduleAndCuts };
/// The fastest layout that fits into `room`, with repeated passes where that is faster than what
/// fits without them. If none fits: the one that needs the least, as far as that can be found; of
/// schedules Sequential. Only its schedule and its splits are meant to be used. Errors: Config for
/// too few cuts.
[[nodiscard]] ScheduleChoice fitting_layout(const Graph& graph, const PlanRequest& request,
                                            const Room& room, Open open);

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
