// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/update_rule.hpp"
#include "models/graph.hpp"
#include "pipeline/memory_plan.hpp"
#include "pipeline/program.hpp"
#include "pipeline/schedule/simulate.hpp"

namespace millrace::partition {

using models::Graph;
using pipeline::OpRange;
using pipeline::Recompute;

/// Cost of an op for one micro-batch. If several ops run as one kernel, the first op has its
/// seconds.
struct OpCost {
  double forward = 0.0;  ///< seconds
  double backward_input = 0.0;
  double backward_weight = 0.0;
  std::int64_t stash_bytes = 0;      ///< kept from its forward for the backward
  std::int64_t kept_bytes = 0;       ///< more, from its backward_input for its backward_weight
  std::int64_t parameter_bytes = 0;  ///< master weights and running statistics
  /// Values made before the op and read by it or a later op: they cross a cut here. For the first
  /// op, the images.
  std::int64_t boundary_bytes = 0;
  std::int64_t unstored_bytes = 0;  ///< of those, values that no op stashes without a cut here
  std::int64_t gradient_bytes = 0;  ///< of those, values whose gradients come back
  [[nodiscard]] double seconds() const { return forward + backward_input + backward_weight; }
  friend bool operator==(const OpCost&, const OpCost&) = default;
};

/// A device as rates. A kernel takes the longer of its arithmetic time and its memory time, plus a
/// fixed time to start.
struct DeviceModel {
  std::string name;
  double flops_per_second = 1.0;  ///< of convolutions and matrix products, on average
  double bytes_per_second = 1.0;
  double seconds_per_kernel = 0.0;
  double depthwise_flops_per_second = 0.0;  ///< with one channel a group; 0: as the others
  friend bool operator==(const DeviceModel&, const DeviceModel&) = default;
};

/// What the kernels of an op have to do in one phase for one micro-batch.
struct OpWork {
  double flops = 0.0;
  double depthwise_flops = 0.0;
  double bytes = 0.0;  ///< read and written
  double kernels = 0.0;
  OpWork& operator+=(const OpWork& other);
};

/// Seconds of kernels with this much work in sum.
[[nodiscard]] double seconds_of(const OpWork& work, const DeviceModel& device);

/// The work of a call of a compiled program.
[[nodiscard]] OpWork call_work(const Graph& graph, const pipeline::StageProgram& program,
                               const pipeline::Call& call);

/// One core of a Xeon with AVX-512 and bf16 tiles, with the average rate of its convolutions, not
/// its peak. Cuts depend only on the ratio of the rates, which changes little with more cores.
[[nodiscard]] DeviceModel cpu_model(DType type);

/// Messages between processes of one machine, through memory that they share.
[[nodiscard]] pipeline::LinkModel local_link();

/// The work by op in the phases Forward, BackwardInput and BackwardWeight, one after the other, in
/// the order of OpCost's seconds.
[[nodiscard]] std::array<std::vector<OpWork>, 3> op_work(const Graph& graph, std::int64_t batch,
                                                         DType type);

/// Costs by op, from the kernel calls of the compiled network. Gradients that no parameter needs
/// are not computed: the first convolution has no `backward_input`, and ops before the first
/// parameter that learns have no backward. A cut between ops of one kernel costs one more pass over
/// a value; this is not counted.
[[nodiscard]] std::vector<OpCost> analytic_costs(const Graph& graph, std::int64_t batch, DType type,
                                                 const DeviceModel& device);

/// The same with recomputation of the layers of these names and those below them: a second forward
/// pass instead of the stash.
[[nodiscard]] std::vector<OpCost> recomputing(const Graph& graph, std::vector<OpCost> costs,
                                              std::span<const std::string> layers);

/// Bytes that a stage keeps per micro-batch besides the stash of its ops: its inputs, its outputs,
/// and space for the gradients that come back.
[[nodiscard]] std::int64_t border_bytes(std::span<const OpCost> costs, OpRange range,
                                        Recompute recompute);

/// Costs of a stage: the sums over its ops; with recomputation, a second forward instead of the
/// stash of its ops. Without the update, which is not of a micro-batch.
[[nodiscard]] pipeline::StageCost stage_cost(std::span<const OpCost> costs, OpRange range,
                                             Recompute recompute);
/// The same for a stage whose segments are known, from pipeline::with_segments(): only ops that are
/// repeated have a second forward, and what crosses a border of a segment is stashed.
[[nodiscard]] pipeline::StageCost stage_cost(std::span<const OpCost> costs, OpRange range,
                                             const pipeline::ProgramOptions& options);

/// What determines the memory per parameter.
struct UpdateMemory {
  // NOLINTNEXTLINE(google-explicit-constructor): a rule alone means float32, on one replica
  UpdateMemory(UpdateRule r, Precision p = {DType::F32, DType::F32}, std::int32_t over = 1)
      : rule(r), precision(p), shares(over) {}
  UpdateRule rule;
  Precision precision;
  std::int32_t shares;  ///< replicas among which the optimizer state is divided
};

/// Bytes of master weights and their copies in other types, gradients, running statistics with
/// their sums, and optimizer state, with each tensor aligned as at run time. Shares of a divided
/// optimizer state count as equal.
[[nodiscard]] std::int64_t parameter_state_bytes(const Graph& graph, OpRange range,
                                                 const UpdateMemory& update);

/// Bytes of the device of a stage, as the run itself finds them: with packed weights, scratch of
/// the kernels and tables of the update. `options` come from pipeline::with_segments().
using StageSizer = std::function<std::int64_t(
    OpRange range, const pipeline::ProgramOptions& options, pipeline::Slots slots)>;

/// Bytes that the device of a stage needs: parameter_state_bytes and the memory plan of the stage's
/// program, whose `options` come from pipeline::with_segments(). Exact except for what only kernels
/// know: packed weights, their scratch, and the tables of the update.
[[nodiscard]] std::int64_t stage_bytes(const Graph& graph, OpRange range,
                                       const pipeline::ProgramOptions& options,
                                       pipeline::Slots slots, const UpdateMemory& update);

/// The part of it for activations: the memory plan of the stage's program.
[[nodiscard]] std::int64_t program_bytes(const Graph& graph, OpRange range,
                                         const pipeline::ProgramOptions& options,
                                         pipeline::Slots slots);

}  // namespace millrace::partition
