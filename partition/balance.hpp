// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "pipeline/program.hpp"

namespace millrace::partition {

using models::OpId;
using pipeline::Backward;

/// Bytes that the device of stage number `stage` needs when the stage holds `range`.
using StageMemory = std::function<std::int64_t(OpRange range, std::int32_t stage)>;

/// From costs alone, in constant time: parameters with all that goes with them, and `slots[stage]`
/// times the stash. Leaves out what lives within a phase. Holds `costs` by reference.
[[nodiscard]] StageMemory additive_memory(std::span<const OpCost> costs,
                                          std::vector<std::int32_t> slots, Recompute recompute,
                                          UpdateRule rule);
/// As stage_bytes, worked out once for equal ranges and slots; `slots` by stage. Holds `graph` by
/// reference.
[[nodiscard]] StageMemory exact_memory(const Graph& graph, const pipeline::ProgramOptions& options,
                                       std::vector<pipeline::Slots> slots,
                                       const UpdateMemory& update);

struct BalanceRequest {
  std::span<const OpCost> costs;  ///< of all ops
  std::vector<OpId> cuts;         ///< ops at which a stage may begin, ascending
  std::int32_t stages = 1;
  std::int32_t micro_batches = 1;
  Recompute recompute = Recompute::None;
  Backward backward = Backward::Joined;
  std::size_t plans = 32;         ///< how many to return at most
  StageMemory memory;             ///< empty: no limit
  std::int64_t memory_limit = 0;  ///< bytes of every stage's device
};

/// Seconds of a step that no schedule can beat: max_s [ sum_{k<s} (f_k + b_k) + m (f_s + b_s) ]. A
/// split backward lets the stages before s catch up on weight gradients while s has its last
/// micro-batch, so that they count with f_k alone.
[[nodiscard]] double bound_seconds(std::span<const pipeline::StageCost> stages,
                                   std::int32_t micro_batches, Backward backward);

struct Balance {
  std::vector<OpRange> stages;
  double bound = 0.0;  ///< see bound_seconds
  friend bool operator==(const Balance&, const Balance&) = default;
};

/// The choices of cuts with the smallest bounds, in order of them. Exact: what comes before a stage
/// costs the same however it is cut, so the term of a stage follows from its two ends, and the best
/// K ways to reach each end hold the best K of all. Of equal bounds the evener stages come first,
/// among those that are kept.
///
///   time   K C^2 S for C cuts and S stages; `memory` is asked only for stages that would be kept
///
/// Errors: Config, when there are too few cuts, or when nothing fits into memory, with the least
/// limit under which something would.
[[nodiscard]] std::vector<Balance> balance(const BalanceRequest& request);

/// Restricts the cuts to boundaries between layers of which one has a name with any of `include`
/// (none given: any name) and neither has a name with any of `exclude`.
struct LayerFilter {
  std::vector<std::string> include;
  std::vector<std::string> exclude;
};
[[nodiscard]] std::vector<OpId> filtered_cuts(const Graph& graph, const LayerFilter& filter);

/// For devices that hold shards of a network without a pipeline: the cuts between layers whose
/// largest stage needs the least memory, and of those with the same the evenest ones. Errors:
/// Config, when the filter leaves too few cuts.
[[nodiscard]] std::vector<OpRange> shard_by_memory(const Graph& graph, std::int32_t shards,
                                                   const LayerFilter& filter,
                                                   const StageMemory& memory);

}  // namespace millrace::partition
