// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/svg.hpp"
#include "core/update_rule.hpp"
#include "models/graph.hpp"
#include "partition/balance.hpp"
#include "partition/cost.hpp"
#include "partition/process_memory.hpp"
#include "pipeline/pipeline_plan.hpp"
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
  /// The segments of each stage, for plans with given stages; empty: as `program` says.
  std::vector<pipeline::ChosenSegments> segments = {};
  UpdateMemory update = UpdateRule::Sgd;
  pipeline::ScheduleRequest schedule;  ///< sets the numbers of stages, devices and micro-batches
  DeviceModel device = cpu_model(DType::F32);  ///< its bytes a second give the time of updates
  pipeline::LinkModel link;
  std::int32_t replicas = 1;
  pipeline::ReduceOptions reduce = {};  ///< of its replicas
  double processors = 0.0;              ///< this and the next as in pipeline::Costs
  std::int32_t devices_per_process = 1;
  std::string cost_model;
  std::vector<OpCost> costs = {};  ///< of all ops; empty: estimated for `device`
  StageSizer sizer;  ///< empty: memory is that of stage_bytes, without what only kernels know
};

/// What a step of these stages costs: `costs` with messages, all-reduces, and the updates whose
/// seconds are not known.
[[nodiscard]] pipeline::Costs step_costs(const Graph& graph, std::span<const OpRange> stages,
                                         std::vector<pipeline::StageCost> costs,
                                         const PlanRequest& request);

/// The plan with these stages; their number must equal that of the schedule. The time is simulated
/// and the memory is that of the request's sizer. Errors: Config, as pipeline::generate.
[[nodiscard]] Plan make_plan(const Graph& graph, std::span<const OpCost> costs,
                             std::span<const OpRange> stages, const PlanRequest& request);
/// The same with these compute actions instead of those that the request names.
[[nodiscard]] Plan make_plan(const Graph& graph, std::span<const OpCost> costs,
                             std::span<const OpRange> stages, const PlanRequest& request,
                             const pipeline::Schedule& compute);

/// Replaces the seconds of a plan's stages, and what follows from them. A `backward_input` that
/// holds both halves is divided as the plan's. `compute`: its actions.
void set_seconds(Plan& plan, const Graph& graph, const PlanRequest& request,
                 const pipeline::Schedule& compute, std::span<const pipeline::StageCost> seconds);

/// Replaces what a simulated step shows by that of a joint order for the plan's stages.
void set_step(Plan& plan, const Graph& graph, const PlanRequest& request,
              const pipeline::PipelinePlan& joint);

struct Search {
  std::vector<models::OpId> cuts;  ///< where stages may begin; empty: between all layers
  std::size_t candidates = 32;     ///< number of balances of each kind that are simulated
  std::int64_t memory_limit = 0;   ///< bytes of a device; 0: none
};

/// The balances with the smallest bounds and the most even ones, as plans, fastest first. Errors:
/// Config if no plan fits in memory, with the smallest limit that works.
[[nodiscard]] std::vector<Plan> best_plans(const Graph& graph, std::span<const OpCost> costs,
                                           const PlanRequest& request, const Search& search);

/// The first plans of best_plans, fastest first, without their memory: what costs the time of a
/// search. `memory_limit` has no effect.
[[nodiscard]] std::vector<Plan> quick_plans(const Graph& graph, std::span<const OpCost> costs,
                                            const PlanRequest& request, const Search& search);
/// Sets the memory of a plan's stages.
void set_memory(Plan& plan, const Graph& graph, const PlanRequest& request);

/// Memory of the device whose stages need the most in sum.
[[nodiscard]] std::int64_t largest_device(const Plan& plan);

/// Prints rows of equal length. Columns are as wide as their widest entry; the first
/// `left_columns`, and sentences, which have no title, are aligned left, the others, which are
/// numbers, right.
[[nodiscard]] std::string text_table(const std::vector<std::vector<std::string>>& rows,
                                     std::size_t left_columns);

/// The names of the columns, then a row per stage: its device, layers, costs and memory.
[[nodiscard]] std::vector<std::vector<std::string>> stage_table(const Plan& plan,
                                                                const Graph& graph);
/// The same as text, and the totals.
[[nodiscard]] std::string to_text(const Plan& plan, const Graph& graph);

/// One line per possible split: bytes that cross there per micro-batch; share of the time,
/// parameters and stash bytes of the ops before it.
[[nodiscard]] std::string cut_table(const Graph& graph, std::span<const OpCost> costs,
                                    std::int64_t batch, DType type);

[[nodiscard]] std::string to_json(const Plan& plan);
/// The exact inverse of to_json. Errors: Config, with `label` and the key.
[[nodiscard]] Plan parse_plan(std::string_view text, std::string_view label);

/// A stand-alone picture for light and dark pages: a bar chart of the stages' seconds with the
/// names of the cuts, and below it the simulated `step`, if it has devices.
[[nodiscard]] std::string to_svg(const Plan& plan, const pipeline::TimeLine& step = {});
/// The bar chart alone.
[[nodiscard]] svg::Drawing draw_stages(const Plan& plan, const pipeline::TimeLine& step = {});

}  // namespace millrace::partition
