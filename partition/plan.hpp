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
#include "partition/cost.hpp"
#include "pipeline/schedule.hpp"
#include "pipeline/simulate.hpp"

namespace millrace::partition {

/// Where a network is cut and what comes of it. A run needs `splits` and `device_of`; the rest says
/// for which run they were found and what was expected of it.
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
  double bound = 0.0;                      ///< that no schedule can beat
  double bubble = 0.0;                     ///< share of the devices' time in which they wait
  std::string cost_model;                  ///< where the costs come from
  [[nodiscard]] std::size_t stages() const { return device_of.size(); }
};

/// For which run plans are made.
struct PlanRequest {
  std::int64_t batch = 1;
  DType type = DType::F32;
  Recompute recompute = Recompute::None;
  UpdateMemory update = UpdateRule::Sgd;
  std::optional<DType> images = {};  ///< as in pipeline::ProgramOptions
  bool mixing = false;
  pipeline::ScheduleRequest schedule;  ///< says how many stages, devices and micro-batches
  pipeline::LinkModel link;
  std::string cost_model;
};

/// The plan with these stages, as many as the schedule has: simulated, and its memory worked out
/// exactly (see stage_bytes). Errors: Config, as pipeline::generate.
[[nodiscard]] Plan make_plan(const Graph& graph, std::span<const OpCost> costs,
                             std::span<const OpRange> stages, const PlanRequest& request);

struct Search {
  std::vector<models::OpId> cuts;  ///< where stages may begin; empty: between all layers
  std::size_t candidates = 32;     ///< balances of either kind that are simulated
  std::int64_t memory_limit = 0;   ///< bytes of a device; 0: none
};

/// The balances with the smallest bounds and the evenest ones, as plans, the fastest first. Errors:
/// Config, when no plan fits into memory, with the least limit under which one would.
[[nodiscard]] std::vector<Plan> best_plans(const Graph& graph, std::span<const OpCost> costs,
                                           const PlanRequest& request, const Search& search);

/// A line a stage: where it is, what it holds, what it takes; then the whole.
[[nodiscard]] std::string to_text(const Plan& plan, const Graph& graph);

/// A line for every possible split: bytes that would cross there for a micro-batch, the share of
/// time before it, the parameters before it, and what the ops before it stash.
[[nodiscard]] std::string cut_table(const Graph& graph, std::span<const OpCost> costs,
                                    std::int64_t batch, DType type);

[[nodiscard]] std::string to_json(const Plan& plan);
/// The inverse, digit by digit. Errors: Config, naming `label` and the key.
[[nodiscard]] Plan parse_plan(std::string_view text, std::string_view label);

/// Bars of the stages' seconds with the names of the cuts: a picture on its own, for light and dark
/// pages.
[[nodiscard]] std::string to_svg(const Plan& plan);

}  // namespace millrace::partition
