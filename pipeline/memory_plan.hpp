// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// A buffer that is needed from call `first` to call `last`, both included.
struct Lifetime {
  std::int64_t bytes = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Offsets (multiples of `alignment`) such that no two buffers that are alive at the same time
/// overlap. Places the largest buffer first, each at the lowest offset that is free for its life.
struct Packing {
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
};
[[nodiscard]] Packing pack(std::span<const Lifetime> lifetimes, std::int64_t alignment);

/// Numbers of micro-batches whose memory is held at once.
struct Slots {
  int stash = 1;   ///< between Forward and the end of the backward phases
  int weight = 1;  ///< between BackwardInput and BackwardWeight, for split backward
  int outbox = 0;  ///< with input gradients still being sent; 0: none are sent
  friend bool operator==(const Slots&, const Slots&) = default;
};

enum class Region { Stash, Weight, Outbox, Transient, Unused };

struct Placement {
  Region region = Region::Unused;
  std::int64_t offset = 0;  ///< within a slot of the region
};

/// The place of every buffer of a program. Exact: at run time a program uses these bytes and no
/// others.
struct MemoryPlan {
  Slots slots;
  std::vector<Placement> placements;  ///< by BufferId
  std::int64_t stash_slot_bytes = 0;
  std::int64_t weight_slot_bytes = 0;
  std::int64_t outbox_slot_bytes = 0;
  std::int64_t transient_bytes = 0;
  [[nodiscard]] std::int64_t bytes() const {
    return slots.stash * stash_slot_bytes + slots.weight * weight_slot_bytes +
           slots.outbox * outbox_slot_bytes + transient_bytes;
  }
};

/// With one slot and no outbox, a micro-batch is finished before the next begins, and all buffers
/// share one packing over all phases. Otherwise each slot contains the buffers that must outlive a
/// phase and those that cross the stage's border, which may arrive early and leave late.
[[nodiscard]] MemoryPlan plan_memory(const StageProgram& program, Slots slots,
                                     std::int64_t alignment = 64);

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
