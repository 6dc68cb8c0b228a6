// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "partition/plan.hpp"
#include "run/patch.hpp"

namespace millrace::partition {

/// Seconds of a step by what they are spent on.
struct StepParts {
  double compute = 0.0;  ///< if it were shared out evenly among the devices
  double bubble = 0.0;   ///< stages that are not equal, and the time to fill and empty the pipeline
  double messages = 0.0;  ///< between stages
  double reduce = 0.0;    ///< gradients between replicas
  double update = 0.0;
};

/// A way to train on all devices.
struct FoundLayout {
  PlanRequest request;  ///< with its micro-batches, schedule, replicas and recomputation
  Plan plan;
  StepParts parts;
  /// Bytes of the largest device with its part of what its process needs besides stages; 0: not
  /// measured.
  std::int64_t with_process = 0;
};

/// What is given when a layout is searched for.
struct LayoutSearch {
  std::int32_t devices = 1;       ///< all of them are used
  std::int64_t total_batch = 1;   ///< images of a weight update
  std::int64_t memory_limit = 0;  ///< bytes of a device; 0: none
  /// Bytes of the largest device of a layout with all that its process needs; empty: only stages
  /// count. What is found is measured, and what does not fit is left out by the next search.
  std::function<std::int64_t(const FoundLayout&)> measure = {};
  std::int64_t assumed_rest = 0;  ///< of that, what a device needs besides its stages, at first
  std::int64_t varies = 0;        ///< from one measurement to the next
  bool shards_optimizer = false;  ///< replicas divide the optimizer state
  std::size_t results = 5;
};

/// The fastest layout for each number of stages, fastest first. Tried are all divisors of the
/// number of devices as stages, the rest as replicas; micro-batches that divide the replica's share
/// of the batch, of at most 512 images, and at most 16 a device or 64 if that is more (if a share
/// has no such divisor, the fewest); all schedules with one, two or four stages a device, cut
/// anywhere; and recomputation where memory does not suffice. Where 1F1B takes twice as long as the
/// best layout, no other schedule is tried. Layouts that cannot be faster than a known one by their
/// lower bound are passed over. `base` gives precision, update rule, device, and link. Errors:
/// Config if none fits in memory, with the least that one needs, or if the batch cannot be divided.
[[nodiscard]] std::vector<FoundLayout> search_layouts(const Graph& graph, const PlanRequest& base,
                                                      const LayoutSearch& search);

/// How long a training takes, for the tables.
struct TrainingLength {
  std::int64_t images = 0;  ///< of an epoch
  double epochs = 90.0;
};

/// A row per layout, and why each but the first is slower than it. The memory is that of the
/// largest device: with its part of the process if all layouts know that, or else of its stages
/// alone.
[[nodiscard]] std::string to_text(std::span<const FoundLayout> layouts,
                                  const TrainingLength& length);
[[nodiscard]] std::string to_json(std::span<const FoundLayout> layouts,
                                  const TrainingLength& length);
/// The fields that make a layout, as what is asked of a run: merged with its other fields, it has
/// this layout.
[[nodiscard]] run::Patch patch_of(const FoundLayout& layout);
/// The same as text: "`batch-size` 8 `shards` 2".
[[nodiscard]] std::string training_fields(const FoundLayout& layout);

}  // namespace millrace::partition
