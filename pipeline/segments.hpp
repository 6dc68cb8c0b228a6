// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "pipeline/memory_plan.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// `options` with the segments with which Recompute::Stage needs the least memory in these slots;
/// unchanged for others. Segments begin at layers and hold about equally many bytes (Chen et al.,
/// arXiv 1604.06174); their number is the best of those tried. Few slots favour many segments,
/// because every slot stashes their borders.
[[nodiscard]] ProgramOptions with_segments(const Graph& graph, OpRange range,
                                           ProgramOptions options, Slots slots);

/// The ways to cut a stage into segments that are tried: from one segment to one per layer.
[[nodiscard]] std::vector<std::vector<OpId>> segment_cuts(const Graph& graph, OpRange range);

/// The segments of a stage that the backward pass repeats, as ranges of ops. `options` come from
/// with_segments().
[[nodiscard]] std::vector<OpRange> repeated_segments(OpRange range, const ProgramOptions& options);

}  // namespace millrace::pipeline
