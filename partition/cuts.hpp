// SPDX-License-Identifier: Apache-2.0
//
// partition: where to cut a network, and what each choice costs.
//
// A pipeline of S stages needs S - 1 *cuts*. Each is named by a *split*, the first layer or op of
// the stage behind it; a layer's name means its first op:
//
//     ops       b0/conv ... b1/0/add | b1/0/relu ... b2/0/add | b2/0/relu ... loss
//     splits                          b1/0/relu                b2/0/relu
//     stages    0                      1                        2
//
// Any boundary between two ops can be cut, even inside a residual block, where two values cross at
// once. A value goes from the stage that makes it straight to every stage that reads it; its
// gradient comes back from reader to reader, so that it adds up in one order:
//
//     activations   0 -> 1, 0 -> 3             a value made on stage 0, read on stages 1 and 3
//     gradients     3 -> 1, 1 -> 0
//
// From the choice of cuts to a plan, one file a step:
//
//   cuts     names to ranges of ops, and what flows between them
//   cost     seconds and bytes of an op and of a stage
//   balance  the cuts with the smallest bound on the time of a step that fit into memory
//   plan     the best of those under a given schedule: as a value, a table, a file, a picture
//
// All of it is arithmetic on values: nothing here needs a device. Costs may be measured ones as
// well as those that `cost` estimates, and whoever runs a plan needs its splits alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "models/graph.hpp"
#include "pipeline/program.hpp"
#include "pipeline/schedule.hpp"

namespace millrace::partition {

using models::Graph;
using models::OpId;
using models::ValueId;
using pipeline::Link;
using pipeline::OpRange;

/// The splits that people are offered: of residual nets the layers named after their activation,
/// between which one value crosses; of others all layers. Never the first.
[[nodiscard]] std::vector<std::string> possible_splits(const Graph& graph);

/// Ops at which a stage may begin: the first of every layer but the first layer, or every op but
/// the first op.
[[nodiscard]] std::vector<OpId> layer_cuts(const Graph& graph);
[[nodiscard]] std::vector<OpId> op_cuts(const Graph& graph);
/// How people call the boundary before `op`: by the layer that begins there, or else by the op.
[[nodiscard]] std::string cut_name(const Graph& graph, OpId op);

/// The stages that splits make; without any, the whole network. Errors: Config, when a name is
/// unknown (with the nearest one), when two mean the same op, when they are out of order, and when
/// one would leave the first stage empty.
[[nodiscard]] std::vector<OpRange> stages_of(const Graph& graph,
                                             std::span<const std::string> splits);
/// The inverse, as far as names go.
[[nodiscard]] std::vector<std::string> splits_of(const Graph& graph,
                                                 std::span<const OpRange> stages);

/// Errors: Config, with the possible splits, unless there is one split fewer than stages.
void check_count(const Graph& graph, std::span<const std::string> splits, std::int32_t stages);

enum class Direction { Activations, Gradients };

/// The pairs of stages between which something flows, sorted. Images cross nothing: every stage
/// that reads them gets them from the data set, and of them there is no gradient.
[[nodiscard]] std::vector<Link> links_of(const Graph& graph, std::span<const OpRange> stages);
/// The values whose activation goes from `link.from` to `link.to`, or whose gradient comes back,
/// in the order of their ids.
[[nodiscard]] std::vector<ValueId> values_on(const Graph& graph, std::span<const OpRange> stages,
                                             Link link, Direction direction);
/// Bytes of those values for a micro-batch of `batch` samples.
[[nodiscard]] std::int64_t message_bytes(const Graph& graph, std::span<const OpRange> stages,
                                         Link link, std::int64_t batch, DType type,
                                         Direction direction);

}  // namespace millrace::partition
