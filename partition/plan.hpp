// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/update_rule.hpp"
#include "models/graph.hpp"
#include "partition/balance.hpp"
#include "partition/cost.hpp"
#include "partition/process_memory.hpp"
#include "pipeline/schedule/schedule.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::partition {

/// The cuts of a network and their predicted cost. A run needs only `splits` and `device_of`; the
/// rest records the run that they were found for, and the prediction.
struct Plan {
  std::string model;
  std::int64_t batch = 1;  ///< samples of a micro-batch
  DType type = DType::F32;
  std::int32_t micro_batches = 1;
  std::string schedule;
  std::vector<std::string> splits;
  std::vector<std::int32_t> device_of;     ///< by stage
  std::vector<pipeline::StageCost> costs;  ///< by stage
  std::vector<std::int64_t> memory;        ///< bytes, by stage
  double seconds = 0.0;                    ///< of a step, simulated
  double bound = 0.0;                      ///< lower bound on `seconds` for any schedule
  double bubble = 0.0;                     ///< share of the devices' time spent waiting
  std::string cost_model;                  ///< where the costs come from
  std::vector<ProcessMemory> processes;    ///< memory of the whole run; empty: not known
  [[nodiscard]] std::size_t stages() const { return device_of.size(); }
};

/// The run that plans are made for.
struct PlanRequest {
  pipeline::ProgramOptions program;  ///< as the training compiles its stages
  UpdateMemory update = UpdateRule::Sgd;
  pipeline::ScheduleRequest schedule;  ///< sets the numbers of stages, devices and micro-batches
  pipeline::LinkModel link;
  std::string cost_model;
  StageSizer sizer;  ///< empty: memory is that of stage_bytes, without what only kernels know
};

/// Bytes that each device needs for these stages with this schedule (with communication), by
/// device: the sum over its stages. `bytes` holds the batch, the precision, the update rule and
/// what is recomputed.
[[nodiscard]] std::vector<std::int64_t> device_bytes(const Graph& graph,
                                                     std::span<const OpRange> stages,
                                                     const pipeline::Schedule& schedule,
                                                     StageBytes& bytes);

/// The plan with these stages; their number must equal that of the schedule. The time is simulated
/// and the memory is that of the request's sizer. Errors: Config, as pipeline::generate.
[[nodiscard]] Plan make_plan(const Graph& graph, std::span<const OpCost> costs,
                             std::span<const OpRange> stages, const PlanRequest& request);

struct Search {
  std::vector<models::OpId> cuts;  ///< where stages may begin; empty: between all layers
  std::size_t candidates = 32;     ///< number of balances of each kind that are simulated
  std::int64_t memory_limit = 0;   ///< bytes of a device; 0: none
};

/// The balances with the smallest bounds and the most even ones, as plans, fastest first. Errors:
/// Config if no plan fits in memory, with the smallest limit that works.
[[nodiscard]] std::vector<Plan> best_plans(const Graph& graph, std::span<const OpCost> costs,
                                           const PlanRequest& request, const Search& search);

/// One line per stage: its device, layers and costs; then the totals.
[[nodiscard]] std::string to_text(const Plan& plan, const Graph& graph);

/// One line per possible split: bytes that cross there per micro-batch; share of the time,
/// parameters and stash bytes of the ops before it.
[[nodiscard]] std::string cut_table(const Graph& graph, std::span<const OpCost> costs,
                                    std::int64_t batch, DType type);

[[nodiscard]] std::string to_json(const Plan& plan);
/// The exact inverse of to_json. Errors: Config, with `label` and the key.
[[nodiscard]] Plan parse_plan(std::string_view text, std::string_view label);

/// A stand-alone bar chart of the stages' seconds with the names of the cuts, for light and dark
/// pages.
[[nodiscard]] std::string to_svg(const Plan& plan);

}  // namespace millrace::partition
