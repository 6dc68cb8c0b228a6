// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pipeline/memory_plan.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// `options` with the segments with which Recompute::Stage needs the least memory in these slots;
/// unchanged for others. Segments begin at layers and hold about equally many bytes (Chen et al.,
/// arXiv 1604.06174); their number is the best of those tried. Few slots favour many segments,
/// because every slot stashes their borders.
[[nodiscard]] ProgramOptions with_segments(const Graph& graph, OpRange range,
                                           ProgramOptions options, Slots slots);

}  // namespace millrace::pipeline
