// SPDX-License-Identifier: Apache-2.0
//
// partition: where to cut a network, and what each choice costs.
//
// A pipeline of S stages needs S - 1 *cuts*. Each is named by a *split*, the first layer or op of
// the next stage; a layer's name means its first op:
//
//     ops       b0/conv ... b1/0/add | b1/0/relu ... b2/0/add | b2/0/relu ... loss
//     splits                          b1/0/relu                b2/0/relu
//     stages    0                      1                        2
//
// Any boundary between two ops can be cut, even inside a residual block, where two values cross.
// A value goes directly from the stage that makes it to every stage that reads it. Its gradient
// comes back from reader to reader, so that contributions are added in a fixed order:
//
//     activations   0 -> 1, 0 -> 3             a value made on stage 0, read on stages 1 and 3
//     gradients     3 -> 1, 1 -> 0
//
// The files, in the order of the work:
//
//   cuts     ranges of ops from names, and the values that flow between them
//   cost     seconds and bytes of an op and of a stage
//   balance  the cuts with the smallest lower bound on a step's time that fit in memory
//   plan     the best of those under a given schedule, as a value, table, JSON file or drawing
//   search   which of several candidates is taken: the same rule for all that follows
//   layout   the schedules that there are, and the fastest with its cuts, within memory
//   spread   equal parts of the work for ranks that cannot have equally many devices
//   choose   the layout of a run: what it names stays, and what it leaves open is decided here
//   fit      the same for memory that is measured
//   nearest  the change of a run that fits and costs the least, for the advice of a refusal
//   layout_search  the same for replicas and micro-batches, too: the layouts of N devices
//
// Nothing here needs a device: sizes that only kernels know are injected. Costs can be measured, or
// estimated by `cost`. Running a plan needs only its splits and device mapping.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "models/graph.hpp"
#include "pipeline/program.hpp"
#include "pipeline/schedule/schedule.hpp"

namespace millrace::partition {

using models::Graph;
using models::OpId;
using models::ValueId;
using pipeline::Link;
using pipeline::OpRange;

/// The splits that are suggested to users: in residual networks the layers named after their
/// activation, where a single value crosses; in other networks all layers. Never the first layer.
[[nodiscard]] std::vector<std::string> possible_splits(const Graph& graph);

/// Ops at which a stage may begin: every op but the first one.
[[nodiscard]] std::vector<OpId> op_cuts(const Graph& graph);
/// Name of the boundary before `op`: the layer that begins there, otherwise the op.
[[nodiscard]] std::string cut_name(const Graph& graph, OpId op);

/// The stages that the splits define; without splits, the whole network. Errors: Config if a name
/// is unknown (with the nearest one), if two names mean the same op, if the splits are out of
/// order, or if the first stage would be empty.
[[nodiscard]] std::vector<OpRange> stages_of(const Graph& graph,
                                             std::span<const std::string> splits);
/// The inverse, with names as by cut_name().
[[nodiscard]] std::vector<std::string> splits_of(const Graph& graph,
                                                 std::span<const OpRange> stages);

/// Errors: Config, with the possible splits, unless there are `stages` - 1 splits.
void check_count(const Graph& graph, std::span<const std::string> splits, std::int32_t stages);

enum class Direction { Activations, Gradients };

/// The values whose activation goes from `link.from` to `link.to`, or whose gradient comes back, in
/// order of their ids.
[[nodiscard]] std::vector<ValueId> values_on(const Graph& graph, std::span<const OpRange> stages,
                                             Link link, Direction direction);
/// Bytes of these values for a micro-batch of `batch` samples.
[[nodiscard]] std::int64_t message_bytes(const Graph& graph, std::span<const OpRange> stages,
                                         Link link, std::int64_t batch, DType type,
                                         Direction direction);

}  // namespace millrace::partition
