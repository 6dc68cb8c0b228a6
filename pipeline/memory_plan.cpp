// SPDX-License-Identifier: Apache-2.0
#include "pipeline/memory_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace millrace::pipeline {
namespace {

std::int64_t round_up(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Call numbers of one buffer in one phase.
struct Use {
  std::int64_t first = -1;
  std::int64_t last = -1;
  [[nodiscard]] bool used() const { return first >= 0; }
  void add(std::int64_t at) {
    if (first < 0) first = at;
    last = std::max(last, at);
  }
};

using Uses = std::array<Use, kPhases>;

/// The calls that read or write every buffer, by phase. Crossing the stage's border counts as a use
/// at the beginning or end of the phase.
std::vector<Uses> collect_uses(const StageProgram& program) {
  std::vector<Uses> uses(program.buffers.size());
  std::array<std::int64_t, kPhases> ends = {};
  for (std::size_t p = 0; p < kPhases; ++p) {
    ends[p] = static_cast<std::int64_t>(program.calls[p].size()) + 1;
    std::int64_t at = 1;
    for (const Call& call : program.calls[p]) {
      for (const BufferId b : call.buffers) {
        if (b.valid()) uses[b.at()][p].add(at);
      }
      ++at;
    }
  }
  const auto touch = [&](BufferId b, Phase phase, bool at_end) {
    const auto p = static_cast<std::size_t>(phase);
    if (!b.valid()) return;
    Use& use = uses[b.at()][p];
    if (at_end) {
      use.add(ends[p]);
    } else {
      use.first = 0;
      use.last = std::max<std::int64_t>(use.last, 0);
    }
  };
  // A buffer that crosses the border must exist before it arrives and until it is sent, so it is
  // held as long as the micro-batch's slot.
  const bool training = program.options.mode == Mode::Training;
  for (const Crossing& c : program.inputs) {
    touch(c.activation, Phase::Forward, false);
    touch(c.gradient, Phase::BackwardInput, true);
  }
  for (const Crossing& c : program.outputs) {
    touch(c.activation, Phase::Forward, true);
    if (training) touch(c.activation, Phase::BackwardInput, false);
    touch(c.gradient, Phase::Forward, true);
    touch(c.gradient, Phase::BackwardInput, false);
  }
  for (const BufferId fed : {program.labels, program.weights, program.scaling, program.mixing})
    touch(fed, Phase::Forward, false);
  for (const BufferId metric : {program.loss, program.rank}) {
    touch(metric, Phase::Forward, true);
    if (training) touch(metric, Phase::BackwardInput, true);
  }
  return uses;
}

/// The lifetime of a buffer over all phases, one after the other.
std::optional<Lifetime> over_all_phases(const StageProgram& program, const Uses& uses,
                                        std::int64_t bytes) {
  std::optional<Lifetime> life;
  std::int64_t start = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (uses[p].used()) {
      if (!life) life = Lifetime{bytes, start + uses[p].first, 0};
      life->last = start + uses[p].last;
    }
    start += static_cast<std::int64_t>(program.calls[p].size()) + 2;
  }
  return life;
}

MemoryPlan plan_single(const StageProgram& program, const std::vector<Uses>& uses,
                       std::int64_t alignment) {
  MemoryPlan plan;
  plan.slots = {0, 0, 0};
  plan.placements.resize(program.buffers.size());
  std::vector<Lifetime> lives;
  std::vector<std::size_t> owners;
  for (std::size_t b = 0; b < uses.size(); ++b) {
    if (const auto life = over_all_phases(program, uses[b], program.buffers[b].bytes)) {
      lives.push_back(*life);
      owners.push_back(b);
    }
  }
  const Packing packing = pack(lives, alignment);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    plan.placements[owners[i]] = {Region::Transient, packing.offsets[i]};
  }
  plan.transient_bytes = packing.bytes;
  return plan;
}

Region region_of(const Uses& uses) {
  const bool f = uses[0].used();
  const bool i = uses[1].used();
  const bool w = uses[2].used();
  if (f && (i || w)) return Region::Stash;
  if (i && w) return Region::Weight;
  return f || i || w ? Region::Transient : Region::Unused;
}

/// Regions of all buffers of a program whose micro-batches overlap.
std::vector<Region> regions_of(const StageProgram& program, const std::vector<Uses>& uses,
                               Slots slots) {
  std::vector<Region> regions;
  regions.reserve(uses.size());
  for (const Uses& use : uses) regions.push_back(region_of(use));
  const auto move = [&](BufferId buffer, Region to) {
    if (buffer.valid() && regions[buffer.at()] != Region::Stash) regions[buffer.at()] = to;
  };
  // Images never arrive before their forward phase. If they are prepared there, the buffer in which
  // they arrive need not be in the stash.
  const bool prepared = std::ranges::any_of(program.phase(Phase::Forward), [](const Call& call) {
    return call.kind == KernelKind::PrepareImages;
  });
  for (const Crossing& c : program.inputs)
    if (!prepared || c.value != Graph::input()) move(c.activation, Region::Stash);
  for (const Crossing& c : program.outputs) {
    move(c.activation, Region::Stash);
    move(c.gradient, Region::Stash);
  }
  if (slots.outbox == 0) return regions;
  for (const Crossing& c : program.inputs) move(c.gradient, Region::Outbox);
  return regions;
}

MemoryPlan plan_slots(const StageProgram& program, const std::vector<Uses>& uses, Slots slots,
                      std::int64_t alignment) {
  const std::vector<Region> regions = regions_of(program, uses, slots);
  MemoryPlan plan;
  plan.slots = slots;
  plan.placements.resize(program.buffers.size());
  std::array<std::vector<Lifetime>, kPhases> lives;
  std::array<std::vector<std::size_t>, kPhases> owners;
  for (std::size_t b = 0; b < uses.size(); ++b) {
    const Region region = regions[b];
    const std::int64_t bytes = program.buffers[b].bytes;
    plan.placements[b].region = region;
    if (region != Region::Transient && region != Region::Unused) {
      std::int64_t& end = region == Region::Stash    ? plan.stash_slot_bytes
                          : region == Region::Weight ? plan.weight_slot_bytes
                                                     : plan.outbox_slot_bytes;
      plan.placements[b].offset = end;
      end += round_up(bytes, alignment);
    }
    if (region == Region::Transient) {
      for (std::size_t p = 0; p < kPhases; ++p) {
        if (!uses[b][p].used()) continue;
        lives[p].push_back({bytes, uses[b][p].first, uses[b][p].last});
        owners[p].push_back(b);
      }
    }
  }
  for (std::size_t p = 0; p < kPhases; ++p) {
    const Packing packing = pack(lives[p], alignment);
    for (std::size_t i = 0; i < owners[p].size(); ++i) {
      plan.placements[owners[p][i]].offset = packing.offsets[i];
    }
    plan.transient_bytes = std::max(plan.transient_bytes, packing.bytes);
  }
  return plan;
}

}  // namespace

Packing pack(std::span<const Lifetime> lifetimes, std::int64_t alignment) {
  Packing packing;
  packing.offsets.assign(lifetimes.size(), 0);
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t next : order) {
    const Lifetime& life = lifetimes[next];
    const std::int64_t bytes = round_up(life.bytes, alignment);
    std::int64_t offset = 0;
    for (const std::size_t other : placed) {
      const Lifetime& o = lifetimes[other];
      if (o.last < life.first || life.last < o.first) continue;
      const std::int64_t begin = packing.offsets[other];
      if (offset + bytes <= begin) break;
      offset = std::max(offset, begin + round_up(o.bytes, alignment));
    }
    packing.offsets[next] = offset;
    packing.bytes = std::max(packing.bytes, offset + bytes);
    const auto place = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](std::int64_t at, std::size_t other) { return at < packing.offsets[other]; });
    placed.insert(place, next);
  }
  return packing;
}

MemoryPlan plan_memory(const StageProgram& program, Slots slots, std::int64_t alignment) {
  MILLRACE_ASSERT(slots.stash >= 1 && slots.weight >= 0 && slots.outbox >= 0);
  const std::vector<Uses> uses = collect_uses(program);
  const bool alone = slots.stash == 1 && slots.weight <= 1 && slots.outbox == 0;
  if (alone) return plan_single(program, uses, alignment);
  return plan_slots(program, uses, slots, alignment);
}

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
