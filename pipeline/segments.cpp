// SPDX-License-Identifier: Apache-2.0
#include "pipeline/segments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace millrace::pipeline {
namespace {

/// A layer of the stage, and the bytes of all values of the stage before it, for one sample.
struct Begin {
  OpId op;
  std::int64_t bytes_before;
};

struct Layers {
  std::vector<Begin> begins;  ///< without the first
  std::int64_t bytes = 0;     ///< of all values
};

Layers layers_of(const Graph& graph, OpRange range) {
  Layers layers;
  for (std::int32_t i = range.first; i < range.last; ++i) {
    const OpId id{i};
    const models::Op& op = graph.op(id);
    const bool begins = graph.layers[op.layer.at()].first_op == id;
    if (begins && i > range.first) layers.begins.push_back({id, layers.bytes});
    if (op.output.valid()) layers.bytes += graph.value(op.output).shape.elements();
  }
  return layers;
}

/// Where `count` segments begin, of about equal sizes.
std::vector<OpId> cuts_for(const Layers& layers, std::size_t count) {
  std::vector<OpId> cuts;
  for (const Begin& begin : layers.begins) {
    const double share =
        static_cast<double>(begin.bytes_before) / static_cast<double>(layers.bytes);
    if (share * static_cast<double>(count) >= static_cast<double>(cuts.size()) + 1.0)
      cuts.push_back(begin.op);
  }
  return cuts;
}

}  // namespace

std::vector<std::vector<OpId>> segment_cuts(const Graph& graph, OpRange range) {
  constexpr double kGrowth = 1.3;
  const Layers layers = layers_of(graph, range);
  std::vector<std::vector<OpId>> all = {{}};
  for (std::size_t count = 2; count <= layers.begins.size() + 1;
       count = static_cast<std::size_t>(std::ceil(kGrowth * static_cast<double>(count)))) {
    std::vector<OpId> cuts = cuts_for(layers, count);
    if (cuts != all.back()) all.push_back(std::move(cuts));
  }
  return all;
}

ProgramOptions with_segments(const Graph& graph, OpRange range, ProgramOptions options,
                             Slots slots) {
  if (options.recompute != Recompute::Stage || options.segments_chosen) return options;
  options.repeats_last_segment = slots.stash > 1;
  ProgramOptions best = options;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  // Few segments are large, and many keep much between them: there is one least in the middle.
  constexpr int kPastTheLeast = 2;
  int past = 0;
  for (std::vector<OpId>& cuts : segment_cuts(graph, range)) {
    options.segments = std::move(cuts);
    const std::int64_t bytes = plan_memory(compile(graph, range, options), slots).bytes();
    if (bytes >= least && ++past == kPastTheLeast) break;
    if (bytes >= least) continue;
    past = 0;
    least = bytes;
    best = options;
  }
  return best;
}

std::vector<OpRange> repeated_segments(OpRange range, const ProgramOptions& options) {
  if (options.recompute != Recompute::Stage) return {};
  std::vector<OpRange> segments = {range};
  for (const OpId cut : options.segments) {
    segments.back().last = cut.value;
    segments.push_back({cut.value, range.last});
  }
  if (!options.repeats_last_segment) segments.pop_back();
  std::erase_if(segments, [&](OpRange segment) {
    return std::ranges::find(options.kept_segments, OpId{segment.first}) !=
           options.kept_segments.end();
  });
  return segments;
}

}  // namespace millrace::pipeline
