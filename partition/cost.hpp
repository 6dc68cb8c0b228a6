// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/update_rule.hpp"
#include "models/graph.hpp"
#include "pipeline/memory_plan.hpp"
#include "pipeline/program.hpp"
#include "pipeline/simulate.hpp"

namespace millrace::partition {

using models::Graph;
using pipeline::OpRange;
using pipeline::Recompute;

/// What an op costs for one micro-batch. Where ops run as one kernel, its seconds are the first
/// one's.
struct OpCost {
  double forward = 0.0;  ///< seconds
  double backward_input = 0.0;
  double backward_weight = 0.0;
  std::int64_t stash_bytes = 0;      ///< what its forward leaves for the backward
  std::int64_t parameter_bytes = 0;  ///< master weights and running statistics
  /// Values made before the op and read by it or behind it: what crosses a cut here. Of the first
  /// op, the images.
  std::int64_t boundary_bytes = 0;
  std::int64_t unstored_bytes = 0;  ///< of those, what no op stashes unless there is a cut
  std::int64_t gradient_bytes = 0;  ///< of those, whose gradients come back
  [[nodiscard]] double seconds() const { return forward + backward_input + backward_weight; }
  friend bool operator==(const OpCost&, const OpCost&) = default;
};

/// A device as two rates: a kernel takes as long as its products or its bytes take, whichever is
/// longer, and a little for being started.
struct DeviceModel {
  std::string name;
  double flops_per_second = 1.0;
  double bytes_per_second = 1.0;
  double seconds_per_kernel = 0.0;
};

/// One core of a Xeon with AVX-512 and bf16 tiles: what its convolutions reach on average, not its
/// peak. Cuts depend on the ratio of the rates only, which more cores leave about as it is.
[[nodiscard]] DeviceModel cpu_model(DType type);

/// By op, from the kernel calls that the whole network compiles to. Gradients that no parameter has
/// a use for are not computed: the first convolution has no `backward_input`, and nothing before
/// the first parameter that learns has a backward. A cut that parts ops of one kernel costs one
/// more pass over a value, which is not counted.
[[nodiscard]] std::vector<OpCost> analytic_costs(const Graph& graph, std::int64_t batch, DType type,
                                                 const DeviceModel& device);

/// The same when the layers of these names, and those below them, are computed again: a second
/// forward pass instead of the stash.
[[nodiscard]] std::vector<OpCost> recomputing(const Graph& graph, std::vector<OpCost> costs,
                                              std::span<const std::string> layers);

/// What a stage keeps of each micro-batch beside the stash of its ops: what came in, what went out,
/// and room for the gradients that will come back.
[[nodiscard]] std::int64_t border_bytes(std::span<const OpCost> costs, OpRange range,
                                        Recompute recompute);

/// A stage's share of the costs: sums, and with recomputation a second forward instead of the stash
/// of its ops. Updates are left out: they take no part in the pipeline.
[[nodiscard]] pipeline::StageCost stage_cost(std::span<const OpCost> costs, OpRange range,
                                             Recompute recompute);

/// What an update keeps of each parameter.
struct UpdateMemory {
  // NOLINTNEXTLINE(google-explicit-constructor): a rule alone means float32, on one replica
  UpdateMemory(UpdateRule r, Precision p = {DType::F32, DType::F32}, std::int32_t over = 1)
      : rule(r), precision(p), shares(over) {}
  UpdateRule rule;
  Precision precision;
  std::int32_t shares;  ///< replicas that slots are shared out to
};

/// Bytes of master weights and their copies in other types, gradients, running statistics with
/// their sums, and slots of the update, each tensor aligned as the run half does it. Slots that are
/// shared out count as if shares were equal.
[[nodiscard]] std::int64_t parameter_state_bytes(const Graph& graph, OpRange range,
                                                 const UpdateMemory& update);

/// Bytes that the device of a stage needs: the above, and the memory plan of the stage's program.
/// Exact but for what only kernels know: packed weights, their scratch, tables of the update.
[[nodiscard]] std::int64_t stage_bytes(const Graph& graph, OpRange range,
                                       const pipeline::ProgramOptions& options,
                                       pipeline::Slots slots, const UpdateMemory& update);

}  // namespace millrace::partition
