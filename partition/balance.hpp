// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "pipeline/program.hpp"

namespace millrace::partition {

using models::OpId;
using pipeline::Backward;

/// Bytes that the device of stage number `stage` needs if the stage consists of `range`.
using StageMemory = std::function<std::int64_t(OpRange range, std::int32_t stage)>;

/// The bytes of stages, with results kept, because a search asks for the same stages again and
/// again: those of `sizer`, or without one those of stage_bytes. Holds `graph` by reference.
class StageBytes {
 public:
  StageBytes(const Graph& graph, pipeline::ProgramOptions options, const UpdateMemory& update,
             StageSizer sizer = {})
      : graph_(&graph), options_(std::move(options)), update_(update), sizer_(std::move(sizer)) {}
  /// Sets the segments of a stage, which are those of the options otherwise.
  void choose(OpRange range, const pipeline::ChosenSegments& segments) {
    chosen_[{range.first, range.last}] = segments;
  }
  [[nodiscard]] std::int64_t operator()(OpRange range, pipeline::Slots slots) {
    return of(range, slots).bytes;
  }
  /// The options of the stage's program, with its segments.
  [[nodiscard]] const pipeline::ProgramOptions& options(OpRange range, pipeline::Slots slots) {
    return of(range, slots).options;
  }

 private:
  struct Figures {
    std::int64_t bytes = 0;
    pipeline::ProgramOptions options;
  };
  [[nodiscard]] const Figures& of(OpRange range, pipeline::Slots slots);

  const Graph* graph_;
  pipeline::ProgramOptions options_;
  UpdateMemory update_;
  StageSizer sizer_;
  using Known = std::deque<std::pair<pipeline::Slots, Figures>>;
  using Ends = std::pair<std::int32_t, std::int32_t>;  ///< of a range
  std::map<Ends, Known> known_;
  std::map<Ends, pipeline::ChosenSegments> chosen_;
};

/// The bytes of stages that have these slots, by stage.
[[nodiscard]] StageMemory exact_memory(std::shared_ptr<StageBytes> bytes,
                                       std::vector<pipeline::Slots> slots);

struct BalanceRequest {
  std::span<const OpCost> costs;  ///< of all ops
  std::vector<OpId> cuts;         ///< ops at which a stage may begin, ascending
  std::int32_t stages = 1;
  std::int32_t micro_batches = 1;
  Recompute recompute = Recompute::None;
  Backward backward = Backward::Joined;
  std::size_t plans = 32;         ///< maximum number of results
  StageMemory memory;             ///< empty: no limit
  std::int64_t memory_limit = 0;  ///< bytes of every stage's device
};

struct Balance {
  std::vector<OpRange> stages;
  double bound = 0.0;  ///< see lower_bound_seconds
  friend bool operator==(const Balance&, const Balance&) = default;
};

/// The choices of cuts with the smallest bounds, smallest first. Exact: the cost of the ops before
/// a stage does not depend on their cuts, so a stage's term depends only on its two ends, and the
/// best K ways to reach each end contain the best K overall. Among equal bounds, more even stages
/// come first (of those that are kept).
///
///   time   K C^2 S for C cuts and S stages; `memory` is called only for stages that would be kept
///
/// Errors: Config if there are too few cuts, or if nothing fits in memory (with the smallest limit
/// that works).
[[nodiscard]] std::vector<Balance> balance(const BalanceRequest& request);

/// Selects boundaries between layers by name. A boundary is kept if the name of one of its two
/// layers contains any of `include` (empty: any name) and neither name contains any of `exclude`.
/// An empty filter keeps all boundaries between layers.
struct LayerFilter {
  std::vector<std::string> include;
  std::vector<std::string> exclude;
};
[[nodiscard]] std::vector<OpId> filtered_cuts(const Graph& graph, const LayerFilter& filter);

/// Stages for shards without a pipeline: the cuts between layers that minimize the memory of the
/// largest stage; among equals, the most even ones. Errors: Config if the filter leaves too few
/// cuts.
[[nodiscard]] std::vector<OpRange> shard_by_memory(const Graph& graph, std::int32_t shards,
                                                   const LayerFilter& filter,
                                                   const StageMemory& memory);

}  // namespace millrace::partition
