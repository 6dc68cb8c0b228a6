// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/graph.hpp"
#include "partition/cost.hpp"
#include "pipeline/pipeline_plan.hpp"
#include "pipeline/program.hpp"

namespace millrace::partition {

/// Which segments of a stage its backward pass repeats.
struct Recomputation {
  pipeline::ChosenSegments chosen;
  double seconds = 0.0;    ///< of the repeated forwards, per micro-batch
  std::int64_t bytes = 0;  ///< of the activations of the stage
};

/// The segments that cost the least time such that the activations of the stage need at most `most`
/// bytes; none, if they fit as they are. If nothing fits: what needs the fewest bytes. `options`
/// are those of the stage without recomputation. Segments begin at layers, and their numbers are
/// those of pipeline::segment_cuts; all sets of up to eight segments are compared, and of more
/// those that leave out the most expensive ones.
[[nodiscard]] Recomputation choose_recomputation(const Graph& graph, std::span<const OpCost> costs,
                                                 OpRange range,
                                                 const pipeline::ProgramOptions& options,
                                                 pipeline::Slots slots, std::int64_t most);

/// The same for all stages of a pipeline, by stage, such that the stages of each device need at
/// most `limit` bytes. Those of one device share what is left when the others need their least.
/// `sizer` finds the bytes of stages; `options` are those without recomputation.
[[nodiscard]] std::vector<Recomputation> choose_recomputation(
    const Graph& graph, std::span<const OpCost> costs, const pipeline::PipelinePlan& plan,
    const pipeline::ProgramOptions& options, const StageSizer& sizer, std::int64_t limit);

}  // namespace millrace::partition
