// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/channels.hpp"
#include "ops/norm.hpp"
#include "ops/weighted.hpp"
#include "pipeline/program.hpp"

namespace millrace::pipeline {

/// Shapes of graph ops as the kernels need them, for micro-batches of `batch` samples.
[[nodiscard]] ops::ConvShape conv_shape(const Graph& graph, OpId op, std::int64_t batch);
[[nodiscard]] ops::DenseShape dense_shape(const Graph& graph, OpId op, std::int64_t batch);
[[nodiscard]] ops::NormShape norm_shape(const Graph& graph, OpId op, std::int64_t batch);
/// Pools, global pools and shortcuts.
[[nodiscard]] ops::WindowShape window_shape(const Graph& graph, OpId op, std::int64_t batch);
/// Operand `part` of a concatenation.
[[nodiscard]] ops::ChannelSlice concat_slice(const Graph& graph, OpId op, std::size_t part,
                                             std::int64_t batch);
[[nodiscard]] ops::ScaleShape scale_shape(const Graph& graph, OpId op, std::int64_t batch);
/// Epsilon of a batch or group norm.
[[nodiscard]] float norm_epsilon(const Graph& graph, OpId op);

/// The op's parameter of this role; invalid if there is none.
[[nodiscard]] models::ParameterId parameter_of(const Graph& graph, OpId op,
                                               models::ParameterRole role);

}  // namespace millrace::pipeline
