// SPDX-License-Identifier: Apache-2.0
//
// Layouts for ranks among which the devices cannot be divided evenly, as after the loss of one. The
// work of all replicas, one after the other, is a line, which is cut into as many equal parts as
// there are ranks. As every replica has the same cuts, a network has a stage between any two of
// them. A rank with the end of one replica and the beginning of the next is a device of both:
//
//     4 devices     | 0         | 0         | 1         | 1         |     2 replicas of 2 stages
//     3 ranks       | 0             | 0     :       1 | 1             |   2 replicas of 3 stages
//
// No layout changes the result, so that this one has the same bits, too.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "partition/plan.hpp"
#include "pipeline/pipeline_plan.hpp"

namespace millrace::partition {

/// A layout of equal parts.
struct Spread {
  std::vector<std::string> splits;
  std::vector<std::int32_t> shares;  ///< stages of each rank, of one replica after the other
  pipeline::Schedule order;          ///< joint, compute alone
  double seconds = 0.0;              ///< of a step, simulated
  double standing = 0.0;             ///< with whole devices dealt out to the ranks
};

/// The fastest layout of equal parts for the ranks of `standing`, the layout that deals out whole
/// devices to them; none if that is as fast. Cuts between layers are taken where cuts inside blocks
/// are not clearly faster. A stage holds the micro-batches that 1F1B would have in its place, so
/// that a rank holds about as much as a device of `standing`, and as much more as it computes more.
/// Where there are fewer ranks than devices, backward passes are split if that is faster.
/// `speeds` are those of the ranks; empty: all are equal. `request` gives the link, and what costs
/// depend on besides `costs`. Deterministic.
[[nodiscard]] std::optional<Spread> spread(const Graph& graph, std::span<const OpCost> costs,
                                           const PlanRequest& request,
                                           const pipeline::PipelinePlan& standing,
                                           std::span<const double> speeds = {});

/// Seconds of a step of a layout whose ranks have these speeds, simulated.
[[nodiscard]] double seconds_of(const Graph& graph, std::span<const OpCost> costs,
                                const PlanRequest& request, const pipeline::PipelinePlan& plan,
                                std::span<const double> speeds);

/// How it runs, of so many replicas; seconds are not needed. Errors: as pipeline::validate.
[[nodiscard]] pipeline::PipelinePlan plan_of(const Graph& graph, const Spread& spread,
                                             std::int32_t replicas);

}  // namespace millrace::partition
